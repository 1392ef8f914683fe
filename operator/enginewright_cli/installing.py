"""What this installation lacks, and what adds it; no package index has a release of Enginewright.

Stages need what only Linux has, as the pods do.
"""

import sys
from typing import Final

_NO_STAGES: Final = (
    "it runs the stages of pods, which need Linux, and this is {system}: run it in a container, in WSL 2"
    " or in CI (docs/preflight.md)"
)


def remedy(extras: str) -> str:
    """Return the command that installs with these extras, in a sentence."""
    return f"run in a clone of Enginewright's repository: pip install '.[{extras}]'"


def why_no_stages(system: str = sys.platform) -> str | None:
    """Return why no stage can run here, with what to do; None: they can."""
    return None if system == "linux" else _NO_STAGES.format(system=system)
