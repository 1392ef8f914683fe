"""The verdict on fallback: which nodes count, what they cost, what the policy makes of it.

What of it starts something: the rest is in tests/unit.
"""

import subprocess
import sys


def test_the_sidecar_can_afford_it() -> None:
    program = (
        "import sys; import enginewright_runtime.proof.promise;"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
