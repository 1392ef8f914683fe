"""ONNX Runtime's own CPU provider: what prepares every model and serves where it is asked for."""

from typing import ClassVar

import onnxruntime as ort
from typing_extensions import override

from enginewright_runtime.session.base import CPU_PROVIDER, SessionBackend


class CpuBackend(SessionBackend):
    """Runs every operator that ONNX Runtime knows; threads are the session's."""

    name: ClassVar[str] = "cpu"
    provider: ClassVar[str] = CPU_PROVIDER
    optimized: ClassVar[bool] = True

    @override
    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(ort.__version__)
