"""Libraries of users: a real operator serves, and the reason why a library is bad is reported."""

import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import Extension, PrepareTask, ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Limits
from enginewright_runtime.session import loading
from enginewright_runtime.session.extensions import elf, libraries, verification

from tests.support.extensions import compile_library, cube, list_entry, place
from tests.support.preparing import Workplace
from tests.support.serving import Server, json_inputs, read_report

NEWER = "API=999"


def model_with(library: Path, operator: str = "Cube") -> Path:
    """Return a model whose folder has the library's folder beside it."""
    folder = library.parent.parent / "model"
    folder.mkdir(exist_ok=True)
    onnx.save(cube(operator), folder / "model.onnx")
    return folder / "model.onnx"


def refuse_library(model: Path, *extensions: Extension) -> str:
    with pytest.raises(StageFailure) as caught:
        verification.verify_libraries(model, extensions)
    assert caught.value.reason is Reason.EXTENSION_FAILED
    cause = caught.value.cause
    start = f"extension {extensions[0].sha256[:12]} cannot be used: "
    assert cause.startswith(start)
    assert not re.search(r"[0-9a-f]{64}", cause), "too long for a condition"
    assert not re.search(r"/\w+/", cause), "paths of a pod mean nothing to users"
    return cause.removeprefix(start)


def test_a_session_finds_the_operators_beside_its_model(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "extensions")
    model = model_with(library)
    assert verification.verify_libraries(model, (list_entry(library),)).operators == (library,)
    loaded = loading.create("cpu", model)
    given = np.array([[1, 2, 3, -4]], np.float32)
    assert loaded.session.run(None, {"x": given})[0].tolist() == [[1, 8, 27, 0]]
    assert loaded.placement.nodes == {"CPUExecutionProvider": 2}


@pytest.mark.parametrize(
    ("macro", "reported"),
    [
        (NEWER, "crashed with SIGSEGV; last output: The requested API version [999] is not av"),
        ("UNDEFINED", "undefined symbol: nowhere_to_be_found"),
        ("CRASH", "crashed with SIGABRT"),
        ("HANG", "took longer than 2 s"),
        ("NO_ENTRY", "it has no function RegisterCustomOps, with which ONNX Runtime registers"),
    ],
)
def test_a_bad_library_is_reported(
    macro: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if macro == "HANG":
        monkeypatch.setattr(verification, "_LIMITS", Limits(seconds=2))
    library = compile_library(tmp_path / "extensions", macro)
    assert reported in refuse_library(model_with(library), list_entry(library))


def write_library(content: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """Give a library other content, and the name that goes with it."""

    def change(library: Path) -> Path:
        library.write_bytes(content(library.read_bytes()))
        return place(library, library.parent)

    return change


def patch_library(offset: int, value: bytes) -> Callable[[Path], Path]:
    return write_library(lambda content: content[:offset] + value + content[offset + len(value) :])


def damage_library(library: Path) -> Path:
    library.write_bytes(library.read_bytes() + b"\0")
    return library


def remove_library(library: Path) -> Path:
    library.unlink()
    return library


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other machine is AArch64")
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (patch_library(18, b"\xb7\0"), "it is built for aarch64, but this image is for x86_64"),
        (write_library(lambda content: content[:3000]), "the file is truncated, or its headers are damaged"),
        (write_library(lambda _: b"#!/bin/sh\n"), "the file is not an ELF file"),
        (write_library(lambda _: b""), "the file is not an ELF file"),
        (patch_library(16, b"\2\0"), "the ELF file is not a shared library"),
        (patch_library(4, b"\1"), "the library is not for a 64-bit little-endian processor"),
        (damage_library, "its content has another digest, sha256 "),
        (remove_library, "it does not exist: it was not fetched"),
    ],
    ids=["machine", "cut off", "script", "empty", "program", "32 bits", "damaged", "removed"],
)  # fmt: skip
def test_a_library_is_read_without_loading(
    change: Callable[[Path], Path], reported: str, tmp_path: Path
) -> None:
    library = change(compile_library(tmp_path / "extensions", "CRASH"))
    assert refuse_library(model_with(library), list_entry(library)).startswith(reported)
    if library.exists():
        with pytest.raises(StageFailure, match="cannot be used"):
            loading.create("cpu", model_with(library))


def test_the_kind_must_be_the_library_s(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "extensions")
    reported = refuse_library(model_with(library), list_entry(library, "TensorRTPlugin"))
    assert reported == (
        "it has operators for ONNX Runtime, but its type in spec.extensions is TensorRTPlugin"
    )


def test_a_plug_in_is_left_to_tensorrt(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "extensions", "PLUGIN", "CRASH")
    findings = verification.verify_libraries(
        model_with(library), (list_entry(library, "TensorRTPlugin"),)
    )
    assert findings == libraries.Libraries(plugins=(library,))


def test_plug_ins_are_loaded_where_the_registry_sees_them(tmp_path: Path) -> None:
    loaded = libraries.of_model(model_with(compile_library(tmp_path / "extensions", "PLUGIN")))
    libraries.load_plugins(loaded)
    assert loaded.plugins[0].name in Path(f"/proc/{os.getpid()}/maps").read_text()


def test_a_plug_in_that_cannot_be_opened(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "extensions", "PLUGIN", "UNDEFINED")
    loaded = libraries.of_model(model_with(library))
    with pytest.raises(StageFailure, match=r"undefined symbol: nowhere_to_be_found"):
        libraries.load_plugins(loaded)


def test_headers_are_read_without_loading(tmp_path: Path) -> None:
    header = elf.read(compile_library(tmp_path, "CRASH"))
    assert header.machine == platform.machine()
    assert "RegisterCustomOps" in header.exports
    assert "pause" not in header.exports, "what a library only uses is no export"
    with pytest.raises(elf.NotALibraryError):
        elf.read(Path(__file__))


def extend_task(place: Workplace, extension: Extension, *, backend: str = "cpu") -> PrepareTask:
    """Return a task whose library lies where `fetch` puts it."""
    uri = place.put("m.onnx", cube())
    return place.task(uri, backend=backend, extensions=(extension,))


def test_the_operator_goes_into_the_artefact(place: Workplace, tmp_path: Path) -> None:
    library = compile_library(tmp_path / "built")
    task = extend_task(place, list_entry(library))
    place_extension(place, task, library)
    for name in ("validate", "convert", "golden", "quantize"):
        assert place.stage(name, task).code == 0
    key = place.stage("publish", task).published.key
    fetched = place.fetch_artifact(key)
    assert fetched.code == 0, fetched.message
    manifest = Manifest.model_validate_json((tmp_path / "artifact/manifest.json").read_text())
    assert f"extensions/{library.name}" in {file.path for file in manifest.files}
    costs = {cost.label: cost.count for cost in manifest.node_costs}
    assert costs == {"cube (Cube)": 1, "relu (Relu)": 1}
    loaded = loading.create("cpu", tmp_path / "artifact" / manifest.model)
    with np.load(tmp_path / "artifact" / manifest.golden_outputs) as outputs:
        expected = outputs[outputs.files[0]]
    with np.load(tmp_path / "artifact" / manifest.golden_inputs) as inputs:
        given = inputs[inputs.files[0]]
    assert np.array_equal(loaded.session.run(None, {"x": given})[0], expected)
    assert np.allclose(expected, np.maximum(given**3, 0))
    serve = ServeTask(model="m", revision="r", prepared_key=key, backend="cpu")
    with Server(tmp_path, serve) as server:
        answer = server.post(json_inputs(x=np.array([[1, 2, 3, -4]], np.float32))).json()
    assert answer["outputs"][0]["data"] == [1, 8, 27, 0]
    # on a runtime that the library is too new for the server tells, and is not killed
    newer = compile_library(tmp_path / "artifact/extensions", NEWER)
    (tmp_path / "artifact/extensions" / library.name).unlink()
    recipe = manifest.recipe.model_copy(update={"extensions": (list_entry(newer),)})
    changed = manifest.model_copy(update={"recipe": recipe})
    (tmp_path / "artifact/manifest.json").write_text(changed.to_json())
    server = Server(tmp_path, serve)
    try:
        assert server.wait() == ExitCode.PERMANENT
    finally:
        server.stop()
    termination_message = read_report(tmp_path)
    assert termination_message.reason is Reason.EXTENSION_FAILED
    assert "The requested API version [999] is not available" in termination_message.outcome


def place_extension(place: Workplace, task: PrepareTask, library: Path) -> None:
    """Fetch the model, and put the library where `fetch` would."""
    plain = task.model_copy(update={"recipe": task.recipe.model_copy(update={"extensions": ()})})
    assert place.stage("fetch", plain).code == 0
    folder = place.root / "work/extensions"
    folder.mkdir(exist_ok=True)
    shutil.copy(library, folder)


@pytest.mark.parametrize("macro", [NEWER, 'NAME="Sphere"'])
def test_validate_refuses(macro: str, place: Workplace, tmp_path: Path) -> None:
    library = compile_library(tmp_path / "built", macro)
    task = extend_task(place, list_entry(library))
    place_extension(place, task, library)
    outcome = place.stage("validate", task)
    if macro == NEWER:
        assert outcome.report.reason is Reason.EXTENSION_FAILED
        assert "The requested API version [999] is not available" in outcome.message
        return
    assert outcome.report.reason is Reason.CUSTOM_DOMAIN_UNSUPPORTED
    assert (
        "neither the runtime image nor a library in spec.extensions has the operators of cube"
        " (Cube)" in outcome.message
    )
    assert "add the library that implements them to spec.extensions" in outcome.message
    assert outcome.full["findings"][0]["nodes"] == ["cube (Cube)"]


def test_a_plug_in_s_operator_is_left_to_the_device(place: Workplace, tmp_path: Path) -> None:
    """Prepare Jobs have no TensorRT; what it makes of the operator its own Job finds out."""
    library = compile_library(tmp_path / "built", "PLUGIN")
    task = extend_task(place, list_entry(library, "TensorRTPlugin"), backend="tensorrt-rtx")
    place_extension(place, task, library)
    outcome = place.stage("validate", task)
    assert outcome.code == 0, outcome.message
    (warning,) = outcome.full["findings"]
    assert (warning["severity"], warning["nodes"]) == ("warning", ["cube (Cube)"])
    assert "whether backend tensorrt-rtx supports them is found on its device" in warning["cause"]
