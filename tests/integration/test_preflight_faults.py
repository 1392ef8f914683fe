"""What goes wrong around preflight: each time a sentence, exit code 2 or 1, and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pytest
from enginewright_cli.preflight.stopping import stop_on_signals

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk, drop_progress
from tests.support.programs import run_program
from tests.support.waiting import until
from tests.unit.test_sources_archive import zip_files

CPU = ("--target", "cpu", "--backend", "cpu")
HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'  # of a safetensors file


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that knows what is installed, and one result."""
    desk = Desk(tmp_path_factory.mktemp("first"))
    done = desk.run(desk.save(broken.relu()), *CPU)
    assert done.returncode == 0, done.stdout
    return desk.cache


@pytest.fixture
def desk(tmp_path: Path, cache: Path) -> Desk:
    """Return a desk whose runs begin with the stages at once."""
    desk = Desk(tmp_path)
    desk.cache.mkdir()
    shutil.copytree(cache / "enginewright", desk.cache / "enginewright")
    return desk


def without_results(desk: Desk) -> Desk:
    """Have the stages run."""
    shutil.rmtree(desk.cache / "enginewright/preflight/results")
    return desk


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts file systems of their own, small or read-only."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mounted-{len(folders)}"
        folder.mkdir()
        done = run_program(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], code=None)
        if done.returncode:
            pytest.skip(f"NOT TESTED, mounting takes root and CAP_SYS_ADMIN: {done.stderr.strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("target", "mark", "number"),
    [
        ("cpu", "reports/prepare-cpu-any/fetch.json", signal.SIGTERM),
        ("cpu", "reports/prepare-cpu-any/validate.json", signal.SIGINT),
        ("cpu", "reports/prepare-cpu-any/convert.json", signal.SIGTERM),
        ("cpu", "reports/prepare-cpu-any/golden.json", signal.SIGINT),
        ("cpu", "reports/prepare-cpu-any/quantize.json", signal.SIGTERM),
        ("cpu", "reports/prepare-cpu-any/publish.json", signal.SIGINT),
        ("sm89", "reports/prepare-tensorrt-rtx/publish.json", signal.SIGTERM),
        ("sm86,cpu", "reports/engine-sm86/verify.json", signal.SIGINT),
    ],
)
def test_an_interrupt_once_a_phase_is_over(
    desk: Desk, target: str, mark: str, number: signal.Signals
) -> None:
    # a small model is done before the signal arrives; runs on the CPU are timed when engines are built
    slow = {"cpu": broken.looping(100), "sm86,cpu": broken.costly(20)}
    path = without_results(desk).save(slow.get(target) or broken.relu())
    process = desk.start(path, "--target", target)
    until(
        lambda: list(desk.scratch.glob(f"*/store/{mark}")) or process.poll() is not None, mark, 100
    )
    assert process.poll() is None, "it ended before the phase was seen"
    interrupt_run(desk, process, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_during_the_probe(desk: Desk, number: signal.Signals) -> None:
    shutil.rmtree(desk.cache)
    process = desk.start(desk.save(broken.relu()), *CPU)
    until(lambda: list(desk.scratch.glob("*/probe/dev")), "the probe")
    interrupt_run(desk, process, number)


def interrupt_run(desk: Desk, process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Interrupt a run; see it say so, and leave nothing."""
    process.send_signal(number)
    process.send_signal(number)  # people press it more than once
    out, wording = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert (
        drop_progress(wording)
        == "enginewright preflight: interrupted; temporary files are removed\n"
    )
    desk.check_clean()


def test_a_signal_while_another_is_handled() -> None:
    """Nothing that the handler does may wait for what it has interrupted."""
    came: set[str] = set()

    def again(frame: FrameType, event: str, argument: object) -> Any:
        """Signal once in every function that the handler calls."""
        del event, argument
        if frame.f_code.co_name not in came:
            came.add(frame.f_code.co_name)
            signal.raise_signal(signal.SIGTERM)
        return again

    with stop_on_signals() as stop:
        sys.settrace(again)
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            sys.settrace(None)
        assert stop.is_set()
    assert {"interrupt", "set"} <= came


def test_an_interrupt_while_many_models_are_looked_at(desk: Desk) -> None:
    models = [desk.save(broken.endless(), f"{number}.onnx") for number in range(3)]
    process = desk.start(*models, *CPU, "--jobs", "2")
    until(lambda: len(list(desk.scratch.glob("*/*/work/converted.json"))) == 2, "two of three", 100)
    interrupt_run(desk, process, signal.SIGINT)


def test_a_full_disk(desk: Desk, models: Path, mounted: Callable[..., Path]) -> None:
    magika = next(models.rglob("standard_v3_3/model.onnx"))
    desk.scratch = mounted("size=5m")
    done = desk.run(magika, *CPU)
    assert done.returncode == 2
    assert "StorageFull" in done.stdout
    assert "remedy: free space in the folder for temporary files, or set TMPDIR" in done.stdout


def test_a_disk_smaller_than_the_model(
    desk: Desk, models: Path, mounted: Callable[..., Path]
) -> None:
    desk.scratch = mounted("size=64k")
    done = desk.run(next(models.rglob("standard_v3_3/model.onnx")), *CPU)
    assert done.returncode == 2
    output = " ".join(done.stdout.split())
    assert "the disk of the work folder has 64.0 KiB in all" in output
    assert "remedy: free space in the folder for temporary files, or set TMPDIR" in output


def test_no_room_for_a_folder(desk: Desk, mounted: Callable[..., Path]) -> None:
    desk.scratch = mounted("nr_inodes=2")
    done = desk.run(without_results(desk).save(broken.relu()), *CPU)
    assert done.returncode == 2
    assert "No space left on device" in " ".join(done.stdout.split())


def test_a_read_only_folder_for_temporary_files(desk: Desk, mounted: Callable[..., Path]) -> None:
    desk.scratch = mounted("ro")
    done = desk.run(without_results(desk).save(broken.relu()), *CPU)
    assert done.returncode == 2
    wording = " ".join(done.stdout.split())
    assert f"StoreUnavailable (preflight; cpu): {desk.scratch}/" in wording
    assert "Read-only file system remedy: set TMPDIR" in wording


def test_a_read_only_cache_is_reported_and_hinders_nothing(
    desk: Desk, mounted: Callable[..., Path]
) -> None:
    desk.cache = mounted("ro")
    done = desk.run(desk.save(broken.relu()), *CPU)
    assert done.returncode == 0
    assert drop_progress(done.stderr).count("\n") == 1
    assert "cannot be cached in" in done.stderr
    assert "Read-only file system; set XDG_CACHE_HOME" in done.stderr


def test_no_network(desk: Desk) -> None:
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED, a network namespace takes root")
    done = desk.run("https://models.example/model.onnx", *CPU, prefix=("unshare", "--net"))
    assert done.returncode == 2
    assert "SourceUnreachable" in done.stdout
    assert "models.example" in done.stdout
    assert "remedy: " in done.stdout


def test_a_refused_connection(desk: Desk) -> None:
    done = desk.run("http://127.0.0.1:9/model.onnx", *CPU)
    assert done.returncode == 2
    assert "SourceUnreachable" in done.stdout


@pytest.mark.parametrize(
    ("program", "number", "code", "wording"),
    [
        # the library crashes in its own process, the stage tells
        ("isolated", signal.SIGSEGV, 1, "crashed with SIGSEGV"),
        # the stage itself is killed, as the kernel does it
        ("enginewright_ru", signal.SIGKILL, 2, "was killed by SIGKILL"),
    ],
)
def test_a_crash_in_the_middle(
    desk: Desk, program: str, number: signal.Signals, code: int, wording: str
) -> None:
    process = desk.start(desk.save(broken.endless()), *CPU)
    until(lambda: list(desk.scratch.glob("*/*/work/converted.json")), "stage golden", 100)
    until(lambda: desk.find_named("isolated"), "a child of stage golden")
    for item in desk.find_named(program):
        os.kill(item, number)
    out, reported = process.communicate(timeout=60)
    assert "Traceback" not in reported
    assert process.returncode == code
    assert wording in " ".join(out.split())
    desk.check_clean()


@pytest.mark.parametrize(
    ("name", "wording", "code"),
    [
        ("link.onnx", "link.onnx: dangling link to gone.onnx", 64),
        ("pipe.onnx", "pipe.onnx: neither a file nor a folder", 64),
        ("/dev/zero", "/dev/zero: neither a file nor a folder", 64),
        ("empty.onnx", "the source is not a model: it is empty", 1),
        ("text.onnx", "is not an ONNX model, or is truncated", 1),
        ("folder.onnx", "has 0 .onnx files", 2),
    ],
)
def test_an_unreadable_path(desk: Desk, name: str, wording: str, code: int) -> None:
    (desk.root / "link.onnx").symlink_to("gone.onnx")
    os.mkfifo(desk.root / "pipe.onnx")
    (desk.root / "empty.onnx").touch()
    (desk.root / "text.onnx").write_text("This is a note.\n")
    (desk.root / "folder.onnx").mkdir()
    done = desk.run(desk.root / name, *CPU)
    assert done.returncode == code
    assert wording in " ".join((done.stderr + done.stdout).split())


def write_others(folder: Path) -> dict[str, str]:
    """Write what is given for a model, and is none; return how each is named."""
    model = broken.relu().SerializeToString()
    files: dict[str, tuple[bytes, str]] = {
        "pointer.onnx": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
            "it is a Git LFS pointer",
        ),
        "model.safetensors": (
            len(HEADER).to_bytes(8, "little") + HEADER + bytes(4),
            "it is a safetensors file",
        ),
        "model.plan": (b"ftrt" + bytes(60), "it is a serialized TensorRT engine"),
        "model.pt": (zip_files({"m/data.pkl": b"x"}), "is a PyTorch checkpoint"),
        "cut.onnx": (model[: len(model) // 2], "is not an ONNX model, or is truncated"),
        "text.onnxtxt": (
            onnx.printer.to_text(broken.relu()).encode(),
            "it is an ONNX model in ONNX's text form",
        ),
        "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(60), "it is a TensorFlow Lite model"),
        "m.mlpackage/Data/com.apple.CoreML/model.mlmodel": (b"\x08\x07", "is a Core ML package"),
        "saved/saved_model.pb": (b"\x08\x01", "is a TensorFlow SavedModel"),
        "empty/readme.txt": (b"x", "has 0 .onnx files: none"),
    }
    for name, (content, _) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {name.partition("/")[0]: wording for name, (_, wording) in files.items()}


def test_files_and_folders_that_are_no_models_are_named(desk: Desk) -> None:
    wordings = write_others(desk.root)
    code, reported = desk.run_json(*wordings, *CPU, "--junit", "junit.xml")
    assert (code, reported["verdict"]) == (1, "fail")
    verdicts = {model["source"]: model["verdict"] for model in reported["models"]}
    assert verdicts == dict.fromkeys(wordings, "fail") | {"empty": "unknown"}
    suites = ET.parse(desk.root / "junit.xml").getroot()  # noqa: S314 - ours
    assert (suites.get("failures"), suites.get("errors")) == (str(len(wordings) - 1), "1")
    causes = {model["source"]: model["findings"][0]["message"] for model in reported["models"]}
    assert causes.keys() == wordings.keys()
    assert {
        name: wording for name, wording in wordings.items() if wording not in causes[name]
    } == {}
    remedies = [model["findings"][0]["remedy"] for model in reported["models"]]
    assert all(remedies)
    assert not [
        remedy
        for remedy in remedies
        if re.search(r"pvc:|claim|accelerator class|secretRef", remedy)
    ]
    assert not [cause for cause in causes.values() if re.search(r"pvc:|claim", cause)]


def test_a_path_of_spaces_and_signs(desk: Desk) -> None:
    path = without_results(desk).save(broken.relu(), "mo dèle ✓/#1 [a]?*%20 'q'.onnx")
    code, reported = desk.run_json(path, *CPU)
    assert (code, reported["verdict"], reported["source"]) == (0, "pass", str(path))
    code, reported = desk.run_json(path, *CPU)
    assert reported["cached"]


@pytest.mark.parametrize(
    ("script", "out"),
    [
        ('"$@" <&-', "PASS"),
        ('"$@" | head -n 1; exit "${PIPESTATUS[0]}"', "PASS"),
        ('"$@" | true; exit "${PIPESTATUS[0]}"', ""),
        ('"$@" >&-', ""),
        ('"$@" 2>&-', "PASS"),
        ('"$@" <&- >&- 2>&-', ""),
    ],
)
def test_closed_streams(desk: Desk, script: str, out: str) -> None:
    path = desk.save(broken.relu())
    done = desk.run(path, *CPU, prefix=("bash", "-c", script, "bash"))
    assert (done.returncode, drop_progress(done.stderr)) == (0, "")
    assert done.stdout.startswith(out)
    assert bool(done.stdout) == bool(out)


def test_a_runtime_package_without_its_parts_names_the_command(desk: Desk) -> None:
    """As after `pip install 'enginewright[cli]'`: the stages cannot be imported."""
    shutil.rmtree(desk.cache)
    hidden = desk.root / "hidden"
    hidden.mkdir()
    (hidden / "onnx.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'onnx'\", name='onnx')\n"
    )
    paths = os.environ.get("PYTHONPATH", "")
    done = desk.run(desk.save(broken.relu()), *CPU, environment={"PYTHONPATH": f"{hidden}:{paths}"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "the runtime package needs onnx, which is not installed" in done.stderr
    assert "pip install '.[preflight]'" in done.stderr


def test_a_job_that_does_not_end_is_ended(desk: Desk) -> None:
    path = desk.save(broken.endless())
    process = desk.start(path, *CPU, "--timeout", "12")
    out, wording = process.communicate(timeout=100)
    assert process.returncode == 1, wording
    assert "Timeout" in out
    assert "the Job exceeded its time limit of 12 s in stage " in " ".join(out.split())
    desk.check_clean()
