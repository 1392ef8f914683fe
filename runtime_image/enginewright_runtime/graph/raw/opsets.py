"""Whether ONNX Runtime may load opsets that it has operators of and does not officially support yet.

A source with such an opset never serves as it is, but its outputs are wanted, to prove what becomes
of it. To be called in a child process: the switch is an environment variable.
"""

import os
from typing import Final

_ONLY_RELEASED: Final = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # onnxruntime, core/graph/model.cc


def allow_unreleased() -> None:
    """Let every session that this process makes load such opsets."""
    os.environ[_ONLY_RELEASED] = "0"
