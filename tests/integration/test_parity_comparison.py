"""What the sidecar imports to compare and to judge: nothing that takes much memory.

What of it starts nothing is in tests/unit.
"""

import sys

import pytest

from tests.support.programs import run_program


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("enginewright_runtime.proof.parity", {"onnx", "onnxruntime", "ml_dtypes"}),
        ("enginewright_runtime.proof.promise", {"numpy", "onnx", "onnxruntime", "aiohttp"}),
    ],
)
def test_no_heavy_library_is_imported(module: str, heavy: set[str]) -> None:
    program = f"import sys, {module}; print({heavy} & set(sys.modules))"
    done = run_program([sys.executable, "-c", program])
    assert done.stdout.strip() == "set()"
