"""What this installation lacks, and how to add it: Enginewright is not on any package index."""

import sys
from typing import Final

_NO_STAGES: Final = (
    "it runs the stages of pods, which require Linux, not {system}: run it in a container, in WSL 2"
    " or in CI (docs/preflight.md)"
)


def remedy(extras: str) -> str:
    """Return a sentence with the command that installs these extras."""
    return f"run in a clone of Enginewright's repository: pip install '.[{extras}]'"


def why_no_stages() -> str | None:
    """Return why stages cannot run here, with the remedy, or None if they can."""
    return None if sys.platform == "linux" else _NO_STAGES.format(system=sys.platform)
