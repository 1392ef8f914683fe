"""ONNX Runtime's own CPU provider: what prepares every model and serves where it is asked for."""

from typing import ClassVar

import onnxruntime as ort

from enginewright_runtime.backends.base import CPU_PROVIDER, Request


class CpuBackend:
    """Runs every operator that ONNX Runtime knows."""

    name: ClassVar[str] = "cpu"
    provider: ClassVar[str] = CPU_PROVIDER

    def provider_options(self, request: Request) -> dict[str, str]:
        """Return no options: threads are the session's."""
        del request
        return {}

    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(ort.__version__)
