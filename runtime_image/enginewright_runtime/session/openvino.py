"""OpenVINO on the CPU, inside ONNX Runtime, which falls back to its CPU provider without an exception."""

import json
import re
from pathlib import Path
from typing import ClassVar

import onnxruntime as ort
from enginewright_contract.images import PROVIDERS
from typing_extensions import override

from enginewright_runtime.session.base import SessionBackend, SessionRequest


class OpenVinoBackend(SessionBackend):
    """Runs partitions of the graph on OpenVINO's CPU plug-in."""

    name: ClassVar[str] = "openvino"
    provider: ClassVar[str] = PROVIDERS["openvino"]

    @override
    def provider_options(self, request: SessionRequest) -> dict[str, str]:
        """Return device and threads; no `cache_dir`, which does not speed up starts (docs/measurements.md).

        With one thread OpenVINO 2025.4 drops the error of incompatible sizes and returns the outputs of
        the previous run, except with NUM_STREAMS=0 (tested with all operators of
        tests/support/clashing.py).
        """
        options = {"device_type": "CPU", "num_of_threads": str(request.threads)}
        if request.threads == 1:
            options["load_config"] = json.dumps({"CPU": {"NUM_STREAMS": "0"}})
        return options

    @override
    def version(self) -> str:
        """Return OpenVINO's version, from the file name of the library that the wheel carries."""
        folder = Path(ort.__file__).parent / "capi"
        names = (path.name for path in folder.glob("libopenvino.so.*"))
        versions = (re.fullmatch(r"libopenvino\.so\.(\d+\.\d+\.\d+)", name) for name in names)
        return next((match.group(1) for match in versions if match), "unknown")
