"""What the artefact says of an engine's layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from enginewright_runtime.engine import builder
from enginewright_runtime.tensorrt import layers, native
from enginewright_runtime.tensorrt.layers import kernels, origins

from tests.support.engines import VERSION, build_mixed, build_request, matmul


def report(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "layers.json").read_text())
    return document


def test_layers_name_their_nodes(tmp_path: Path) -> None:
    asked = build_request(tmp_path, matmul())
    built = builder.build(asked)
    assert "layers.json" in built.files
    layers = report(asked.out)
    assert layers["library"] == f"TensorRT-RTX {VERSION}"
    (engine,) = layers["engines"]
    assert (engine["engine"], engine["kernels"]) == ("model.engine", [])
    assert engine["total"] == len(engine["layers"])
    of_nodes = {node: layer for layer in engine["layers"] for node in layer["nodes"]}
    assert of_nodes["multiply"]["type"] == "MATRIX_MULTIPLY"
    assert of_nodes["relu"] == {
        "name": "relu",
        "type": "ACTIVATION",
        "precision": "FLOAT",
        "nodes": ["relu"],
    }
    assert not list(asked.out.rglob("*.layers"))


def test_every_engine_of_a_model_in_parts(tmp_path: Path) -> None:
    asked = build_request(tmp_path, build_mixed())
    builder.build(asked)
    (engine,) = report(asked.out)["engines"]
    assert engine["engine"] == "part-0.engine"
    nodes = {node for layer in engine["layers"] for node in layer["nodes"]}
    assert {"conv_1", "mvn", "reshape"} <= nodes
    assert "det_bad" not in nodes


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_MAX_ENTRIES", 5)
    engines = [tmp_path / f"{name}.engine" for name in "ab"]
    layer = {"name": "n" * 160, "type": "T", "precision": "FLOAT", "nodes": []}
    for engine in engines:
        layers.file_for(engine).write_text(
            json.dumps({"engine": engine.name, "total": 90, "layers": [layer] * 3})
        )
    layers.write(tmp_path / "layers.json", "L 1", engines, {"b.engine": ["k"] * 9})
    listed = report(tmp_path)["engines"]
    assert [(item["total"], len(item["layers"]), item["kernels"]) for item in listed] == [
        (90, 3, []),
        (90, 2, []),
    ]


def test_where_layers_come_from() -> None:
    assert origins("[ONNX Layer: /a/Conv]\x1e[ONNX Layer: b[0]]") == ("/a/Conv", "b[0]")
    assert origins("") == ()


def test_the_report_of_the_inspector() -> None:
    """Strings where the engine was built with names only, objects where with details."""
    assert kernels('{"Layers": ["conv + relu", {"Name": "gemm", "LayerType": "gemm"}]}') == [
        "conv + relu",
        "gemm",
    ]
    for nothing in ("", "[]", "{", '{"Bindings": []}'):
        assert kernels(nothing) == []


def test_without_a_device_nothing_is_inspected(tmp_path: Path) -> None:
    asked = build_request(tmp_path, matmul())
    engine = asked.out / builder.build(asked).engine.file
    log = tmp_path / "log"
    said = native.inspect(
        backend="tensorrt-rtx", version=VERSION, engine=engine, log=log, plugins=()
    )
    assert said == ""
    assert "CUDA" in log.read_text()
