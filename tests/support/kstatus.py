"""kstatus itself, to compare what it makes of a model with what the model's user would say.

The Go program is built when it is first used, into a cache keyed by a digest of its sources.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from driver.build import find_go
from driver.layout import cache_root

from tests.support.programs import run_program

BUILD_SECONDS: Final = 900
_SOURCE: Final = Path(__file__).parent / "kstatus_program"


@dataclass(frozen=True)
class Computed:
    """The status of one object: Current, InProgress, Failed, Terminating or Unknown."""

    sig: str  # as Kubernetes' SIG CLI computes it
    flux: str  # as Flux does
    message: str


def compute(objects: Iterable[dict[str, Any]]) -> list[Computed]:
    """Return what kstatus makes of each object.

    Raises:
        CalledProcessError: The program cannot be built, or an object is none.
    """
    done = run_program([_program()], input="\n".join(map(json.dumps, objects)), timeout=60)
    return [Computed(**json.loads(line)) for line in done.stdout.splitlines()]


def _program() -> Path:
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    built = cache_root() / "kstatus" / digest.hexdigest()[:16]
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            subprocess.run(
                [find_go(), "build", "-trimpath", "-buildvcs=false", "-o", f"{work}/out", "."],
                cwd=_SOURCE,
                env={
                    **os.environ,
                    "CGO_ENABLED": "0",
                    "GOFLAGS": "-mod=readonly",
                    # a persistent cache is useless for a single build and fills the disk
                    "GOCACHE": f"{work}/objects",
                },
                check=True,
                timeout=BUILD_SECONDS,
            )
            Path(work, "out").rename(built)  # another process may have built the same
    return built
