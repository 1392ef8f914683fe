"""`enginewright describe`: what it reads of models, and what it says of files that are none."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_cli.app import app
from enginewright_cli.describe.reading import read
from enginewright_cli.reporting import CommandError
from onnx import numpy_helper
from typer.testing import CliRunner

from tests.support.broken_models import initializer, parse_text
from tests.support.serving import linear_model


def run(path: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["describe", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_model_in_ten_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(linear_model(), path)
    lines = run(path).splitlines()
    assert len(lines) <= 10
    text = "\n".join(lines)
    for wording in ("x: float32 [batch, 8]", "total: float32 []", "MatMul 1", "32: float32 128 B"):
        assert wording in text, text
    assert json.loads(run(path, "-o", "json"))["parameters"] == 32


def test_what_decides_where_it_runs(tmp_path: Path) -> None:
    model = parse_text(
        """(float[4] x, bool c) => (float[n] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        n1 = NonZero(d) g = com.example.Gelu(d)
        y = If(c) <then_branch = t () => (float[n] a) { a = Identity(g) },
                   else_branch = e () => (float[n] b) { b = Identity(d) }> }""",
        initializer("s", np.float32(1)),
        initializer("z", 0, np.int8),
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    description = read(path)
    assert description.quantization.startswith(
        "QuantizeLinear 1, DequantizeLinear 1; weights in int8"
    )
    assert description.notable == (
        "control flow: If 1",
        "sizes that depend on values: NonZero 1",
        "other domains: com.example:Gelu 1",
    )


def test_external_data_that_is_missing_is_named(tmp_path: Path) -> None:
    model = linear_model()
    (weights,) = model.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(np.zeros((8, 4), np.float32), weights.name))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert read(path).external[0].size_bytes == 128
    (tmp_path / "w.bin").unlink()
    assert "w.bin missing" in run(path)


@pytest.mark.parametrize(
    ("content", "wording"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"", "empty"),
        (b"PK\x03\x04", "a PyTorch checkpoint: export"),
        (b"\x0a\xff", "truncated"),
        (None, "no such file"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes | None, wording: str) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match=wording):
        read(path)
