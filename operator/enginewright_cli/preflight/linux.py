"""Whether stages can run on this system at all: they need what only Linux has, as the pods do."""

import sys
from typing import Final

_MESSAGE: Final = (
    "it runs the stages of pods, which need Linux, and this is {system}: run it in a container, in WSL 2"
    " or in CI (docs/preflight.md)"
)


def why_not(system: str = sys.platform) -> str | None:
    """Return why no stage can run here, with what to do; None: they can."""
    return None if system == "linux" else _MESSAGE.format(system=system)
