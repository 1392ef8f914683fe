"""How outputs are compared: every type, every figure, every tolerance.

What of it starts something: the rest is in tests/unit.
"""

import subprocess
import sys


def test_no_native_library_is_needed() -> None:
    """The sidecar compares too, and has little memory."""
    reported = (
        "import sys, enginewright_runtime.proof.parity;"
        "print([name for name in ('onnx', 'onnxruntime', 'ml_dtypes') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", reported], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
