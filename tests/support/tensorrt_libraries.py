"""NVIDIA's TensorRT 10 and 11 from Maven Central, without a GPU."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

VERSIONS: Final = {"10": "10.15.1.29", "11": "11.2.1.2"}
_PROGRAM: Final = Path(__file__).resolve().parents[2] / "hack/tensorrt-libraries"


@cache
def fetch(major: str) -> Path:
    """Return the folder of a TensorRT, downloaded once."""
    done = subprocess.run(
        [str(_PROGRAM), major],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip().splitlines()[-1])
