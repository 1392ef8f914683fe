"""`hack/gpu-proof`: pieces arrive in any order and whole, and every bad input is one sentence."""

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from hack.gpu_proof import fatbin, machine, packing, pieces, report
from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = ROOT / "hack/gpu-proof"
LIMIT = 5 << 20  # bytes of a piece


def run(
    *arguments: str | Path, python: str = sys.executable, timeout: float = 300
) -> tuple[int, str]:
    """Run the command; return exit code and what it says on standard error."""
    done = run_program([python, COMMAND, *map(str, arguments)], code=None, timeout=timeout)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip()


CONTENTS = {
    "large/library.so": np.random.default_rng(0).bytes(11 << 20),  # which no compressor shortens
    "empty": b"",
    "small.py": b"print()\n",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of pieces."""
    folder = tmp_path_factory.mktemp("packed")
    sources = []
    for name, content in CONTENTS.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sources.append(pieces.Source(path, name))
    (folder / "source/small.py").chmod(0o755)
    target = folder / "pieces"
    target.mkdir()
    made, files = pieces.pack("cuda", sources, target, LIMIT)
    pieces.Index("3.12", "9.0", tuple(made), tuple(files)).write(target)
    return target


@pytest.fixture
def index(original: Path, tmp_path: Path) -> pieces.Index:
    """Return the index of a copy of the pieces, which a test may damage."""
    shutil.copytree(original, tmp_path / "pieces")
    return pieces.Index.read(tmp_path / "pieces")


def test_pieces_are_bounded_and_unpacked_in_any_order(tmp_path: Path, index: pieces.Index) -> None:
    assert len(index.pieces) > 2
    assert all(
        (tmp_path / "pieces" / piece.name).stat().st_size == piece.size <= LIMIT
        for piece in index.pieces
    )
    assert pieces.Index.read(tmp_path / "pieces") == index
    target, state = tmp_path / "files", tmp_path / "state"
    for piece in reversed(index.pieces):
        pieces.unpack(tmp_path / "pieces", [piece], target, state)
        (tmp_path / "pieces" / piece.name).unlink()  # nothing is read twice
        pieces.unpack(tmp_path / "pieces", [piece], target, state)
    pieces.verify(index.files, target)
    assert {name: (target / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert os.access(target / "small.py", os.X_OK)


def test_a_piece_that_is_still_being_copied_has_not_arrived(
    tmp_path: Path, index: pieces.Index
) -> None:
    first = index.pieces[0]
    path = tmp_path / "pieces" / first.name
    assert pieces.has_arrived(tmp_path / "pieces", first)
    path.write_bytes(path.read_bytes()[:-1])
    assert not pieces.has_arrived(tmp_path / "pieces", first)


def test_a_damaged_piece_is_named_and_the_others_are_unpacked(
    tmp_path: Path, index: pieces.Index
) -> None:
    second = index.pieces[1]
    path = tmp_path / "pieces" / second.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    state = tmp_path / "state"
    with pytest.raises(pieces.PieceError, match=f"{second.name} is damaged: .*; copy it again"):
        pieces.unpack(tmp_path / "pieces", index.pieces, tmp_path / "files", state)
    assert {path.name for path in state.iterdir()} == {
        piece.sha256 for piece in index.pieces if piece != second
    }


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_unpacked_files_that_changed_are_named(
    damage: str, tmp_path: Path, index: pieces.Index
) -> None:
    target = tmp_path / "files"
    pieces.unpack(tmp_path / "pieces", index.pieces, target, tmp_path / "state")
    file = target / "large/library.so"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"?" * (damage == "changed"))
    with pytest.raises(pieces.PieceError, match=r"library\.so is .*: delete .*, then run again"):
        pieces.verify(index.files, target)


def test_machine_code_of_other_devices_is_overwritten_and_nothing_moves(tmp_path: Path) -> None:
    """A container with code for 8.6 and 9.0 and PTX, and one with PTX and code for 8.6 only."""

    def entry(kind: int, architecture: int, fill: bytes) -> bytes:
        return (
            struct.pack("<HHIQ12xI", kind, 0x101, 64, 32, architecture).ljust(64, b"h") + fill * 32
        )

    def container(*entries: bytes) -> bytes:
        body = b"".join(entries)
        return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(body)) + body

    chance = b"\x50\xed\x55\xba" + b"no container"
    library = (
        b"before" + chance + container(entry(1, 80, b"p"), entry(2, 86, b"a"), entry(2, 90, b"b"))
    )
    library += b"between" + container(entry(1, 86, b"q"), entry(2, 86, b"c")) + b"after"
    source, target = tmp_path / "full.so", tmp_path / "reduced.so"
    source.write_bytes(library)
    assert fatbin.reduce(source, target, "9.0") == 3 * 32
    expected = library
    for unused in (b"p", b"a", b"c"):  # PTX beside machine code of the device is not loaded
        expected = expected.replace(unused * 32, bytes(32))
    assert target.read_bytes() == expected


def test_wheels_of_another_python_or_platform_are_found(tmp_path: Path) -> None:
    fitting = (
        "numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "obstore-0.12.1-cp311-abi3-manylinux_2_17_x86_64.whl",
        "idna-3.20-py3-none-any.whl",
        "tensorrt_cu12_bindings-10.6.0-cp312-none-manylinux_2_17_x86_64.whl",
    )
    wrong = ("numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl", "uvloop-1-cp312-cp312-win32.whl")
    for name in (*fitting, *wrong):
        (tmp_path / name).touch()
    assert packing.check_wheels(tmp_path, "3.12") == list(wrong)


def test_a_folder_without_pieces_is_named(tmp_path: Path) -> None:
    code, said = run("run", "--pieces", tmp_path / "nothing", "--work", tmp_path / "work")
    assert (code, said) == (
        1,
        f"gpu-proof: {tmp_path}/nothing is no folder: name the one that `hack/gpu-proof pack` has written",
    )
    code, said = run("run", "--pieces", tmp_path, "--work", tmp_path / "work")
    assert code == 1
    assert "has no index.json: run `hack/gpu-proof pack`" in said


def test_another_python_and_a_machine_without_a_driver_are_refused_before_anything_is_written(
    tmp_path: Path, index: pieces.Index
) -> None:
    work = tmp_path / "work"
    code, said = run("run", "--pieces", tmp_path / "pieces", "--work", work)
    assert code == 1
    assert "but the pieces are for Python 3.12: run it with python3.12" in said
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    pieces.Index(own, "9.0", index.pieces, index.files).write(tmp_path / "pieces")
    code, said = run("run", "--pieces", tmp_path / "pieces", "--work", work)
    if not Path("/proc/driver/nvidia/version").exists():
        assert code == 1
        assert "this machine has no NVIDIA driver" in said
        assert not work.exists()


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        @staticmethod
        def cuInit(flags: int) -> int:  # noqa: N802 - the driver's name
            return flags

    monkeypatch.setattr("ctypes.CDLL", lambda _: Driver)
    monkeypatch.setattr(machine, "_find_library", lambda name: [Path("/lib") / name])
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    large = pieces.Packed("a", "cuda", 1 << 60, "0")
    refusal = str(machine.refuse(pieces.Index(own, "9.0", (), (large,)), tmp_path / "work"))
    assert "MiB are needed: name another folder with --work" in refusal
    monkeypatch.setattr(machine, "_find_library", lambda _: [])
    refusal = str(machine.refuse(pieces.Index(own, "9.0", (), ()), tmp_path / "work"))
    assert "CUDA's libraries are not in this Python's packages: libcublas.so.13" in refusal


@pytest.mark.timeout(1500)
def test_the_whole_proof_is_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    """The same steps with the CPU in place of CUDA and TensorRT-RTX, which builds without a device."""
    code, said = run("run", "--rehearse", "--work", tmp_path, "--seconds", "1300", timeout=1400)
    steps = json.loads((tmp_path / "results.json").read_text())["steps"]
    statuses = {name: step["status"] for name, step in steps.items()}
    assert code == 0, f"{said} {statuses}"
    assert set(statuses.values()) == {"passed", "needs a device", "refused"}
    assert statuses["model-magika-source"] == statuses["engine-magika"] == "passed"
    assert statuses["refusals"] == "passed"


@pytest.mark.timeout(1500)
def test_everything_is_packed_for_the_machine(tmp_path: Path) -> None:
    """Downloads 2 GB, once a machine; every wheel is for that Python, and every piece can be sent."""
    index = packing.pack_all(packing.CACHE, "9.0", "3.12")
    packing.place(index, packing.CACHE, tmp_path)
    assert index.groups() == ("cuda", "tensorrt")
    assert all(piece.size <= pieces.LIMIT for piece in index.pieces)
    pieces.unpack(tmp_path / "pieces", index.pieces, tmp_path / "files", tmp_path / "state")
    pieces.verify(index.files, tmp_path / "files")
    assert {"onnxruntime_gpu", "tensorrt_cu12_bindings"} <= index.versions.keys()


def test_a_step_that_was_not_run_keeps_its_result_of_an_earlier_run(tmp_path: Path) -> None:
    page, paths = tmp_path / "gpu.md", []
    machine_ = {"devices": ["NVIDIA X, 580.1, 81559 MiB, 9.0"], "python": "3.12.3"}
    batching = {"batch_size_1": {"requests_per_second": 9, "p50_ms": 1, "p99_ms": 2}}
    runs: list[tuple[str, dict[str, tuple[str, object]]]] = [
        ("2026-01-02", {"batching": ("passed", batching), "workspace": ("failed", {})}),
        ("2026-01-03", {"batching": ("not run", {}), "workspace": ("failed", {})}),
    ]
    for date, steps in runs:
        paths.append(tmp_path / f"{date}.json")
        document = {
            "date": date,
            "machine": machine_,
            "versions": {"onnx": "1.2"},
            "steps": {
                name: {"group": "cuda", "about": name, "status": status, "figures": figures}
                for name, (status, figures) in steps.items()
            },
        }
        paths[-1].write_text(json.dumps(document))
    page.write_text("<!-- hack/gpu-proof: results -->\n<!-- /hack/gpu-proof -->\n")
    report.write(paths, page)
    text = page.read_text()
    assert "2026-01-03: **NVIDIA X**" in text
    assert "| batching | batching | passed on 2026-01-02 | batch_size_1: 9 requests/s" in text
    assert "| workspace | workspace | failed |" in text
    paths[0].write_text(paths[0].read_text().replace("580.1", "590.2"))
    with pytest.raises(pieces.PieceError, match=r"580\.1.* not of .*590\.2.*: report it alone"):
        report.write(paths, page)
