"""This machine's processor, as the kernel reports it, and whether ONNX Runtime measures INT8 products as exact on it."""

import platform
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from enginewright_contract.processors import CPUINFO, Processor, has_exact_products, parse

from enginewright_runtime.session.base import load_small

_DEPTH: Final = 64
# x [1, 64] of UINT8 by 64 x 16 INT8 of 127, as onnx serializes it: servers, which read this, load no onnx
_PRODUCTS: Final = b"".join(
    (
        bytes.fromhex("0807 3add08 0a18 0a0178 0a0177 120179 220d"),
        b"MatMulInteger",
        bytes.fromhex("1208"),
        b"products",
        bytes.fromhex("2a8c08 0840 0810 1003 420177 4a8008"),
        bytes([127]) * (_DEPTH * 16),
        bytes.fromhex("5a13 0a0178 120e 0a0c 0802 1208 0a020801 0a020840"),
        bytes.fromhex("6213 0a0179 120e 0a0c 0806 1208 0a020801 0a020810"),
        bytes.fromhex("4204 0a00 100d"),
    )
)


@cache
def read() -> Processor:
    """Return this machine's processor; unknown features are omitted."""
    try:
        cpuinfo = Path(CPUINFO).read_text(errors="replace")
    except OSError:  # no Linux
        cpuinfo = ""
    processor = parse(cpuinfo, platform.machine())
    exact = _exact_products()
    # an emulator reports the flags of its host, whose instruction sets the process cannot use
    usable = tuple(
        feature
        for feature in processor.features
        if exact is not False or not has_exact_products({feature})
    )
    return processor.model_copy(update={"features": usable, "exact_products": exact})


def _exact_products() -> bool | None:
    """Multiply the largest UINT8 by the largest INT8 on ONNX Runtime's CPU provider."""
    try:
        session = load_small(_PRODUCTS)
        products = session.run(None, {"x": np.full((1, _DEPTH), 255, np.uint8)})[0]
    except Exception:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
        return None
    return bool((np.asarray(products) == _DEPTH * 255 * 127).all())
