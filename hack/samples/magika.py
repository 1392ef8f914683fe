"""Client side of magika, a model that detects a file's type: converts bytes to inputs, scores to a label.

Features as in https://github.com/google/magika for its model standard_v3_3: the first and the last
1024 bytes, stripped, padded with 256.
"""

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_SIZE = 1024
_BLOCK = 4096
_PADDING = 256


def tensor(content: bytes) -> dict[str, Any]:
    """Return the model's input, 2048 integers, as a request has it."""
    begin = list(content[:_BLOCK].lstrip()[:_SIZE])
    end = list(content[-_BLOCK:].rstrip()[-_SIZE:])
    data = [
        *begin, *[_PADDING] * (_SIZE - len(begin)),
        *[_PADDING] * (_SIZE - len(end)), *end,
    ]  # fmt: skip
    return {"name": "bytes", "shape": [1, 2 * _SIZE], "datatype": "INT32", "data": data}


def label(scores: list[float]) -> str:
    """Return the name of the type with the highest score."""
    return _labels()[scores.index(max(scores))]


@functools.cache
def _labels() -> list[str]:
    shown = subprocess.run(
        [str(REPOSITORY / "hack/models")], capture_output=True, text=True, check=True
    )
    folder = Path(shown.stdout.strip().splitlines()[-1])
    config = next(folder.rglob("standard_v3_3/config.min.json"))
    return list(json.loads(config.read_text())["target_labels_space"])
