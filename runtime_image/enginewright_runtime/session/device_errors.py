"""Recognizes errors of native libraries after which this process has lost the device. Pure.

After most of them every CUDA call returns the same error: "the process must be terminated and relaunched"
(CUDA Runtime API, cudaError). Messages that do not name the device, such as
"TensorRT EP execution context enqueue failed.", are diagnosed by rerunning known-valid inputs.
"""

import re
from typing import Final

# Codes of cudaError_t with the text of cudaGetErrorString (libcudart 13.4)
LOST: Final[dict[int, str]] = {
    4: "driver shutting down",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    201: "invalid device context",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    806: "the remote procedural call between the MPS server and the MPS client failed",
    810: "the MPS client has been terminated by the server",
}
# ONNX Runtime's CUDA and TensorRT-RTX providers write "CUDA failure 700: ...", others "CUDA error 700"
_CODE: Final = re.compile(r"\bCUDA (?:failure|error|driver error):? (\d+)\b", re.IGNORECASE)
_NAME: Final = re.compile(
    r"\bcudaError(?:DevicesUnavailable|NoDevice|ECCUncorrectable|IllegalAddress|LaunchFailure"
    r"|LaunchTimeout|CudartUnloading|HardwareStackError|IllegalInstruction|MisalignedAddress)\b"
    r"|\bCL_DEVICE_NOT_AVAILABLE\b|\bZE_RESULT_ERROR_DEVICE_LOST\b|\bdevice lost\b",
    re.IGNORECASE,
)


def find_lost_device(text: str) -> str | None:
    """Return the cause that `text` names, if any, without details that change between runs."""
    for match in _CODE.finditer(text):
        code = int(match.group(1))
        if code in LOST:
            return f"CUDA failure {code}: {LOST[code]}"
    for code, error in LOST.items():
        if error in text:
            return f"CUDA failure {code}: {error}"
    named = _NAME.search(text)
    return named.group() if named else None
