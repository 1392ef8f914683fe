"""kstatus itself, to compare what it makes of a model with what the model's user would say.

The Go program is built when it is first used, by one process for all.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.support.programs import go_program, run_program

BUILD_SECONDS: Final = 900
_FOLDER: Final = "tests/support/kstatus_program"


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
    done = run_program(
        [go_program(_FOLDER, ".")], input="\n".join(map(json.dumps, objects)), timeout=60
    )
    return [Computed(**json.loads(line)) for line in done.stdout.splitlines()]
