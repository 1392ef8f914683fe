"""The time that a push may take, which follows the actual work of a Job with a deadline."""

import time
from typing import Final

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.failures import unreachable

_GOES_ON: Final = "no action needed: the next Job that finds the artefact continues"
_TOO_SLOW: Final = (
    "if this repeats, the store or the registry is too slow for this artefact, which pods read from the"
    " store: make it faster, or empty store.images.repository"
)


class PushDeadline:
    """The end of one push to a repository, `seconds` from now, and its progress."""

    def __init__(self, repository: str, seconds: float) -> None:
        self._repository = repository
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._at = "the first request"
        self._has_stored = False

    def begin(self, what: str) -> None:
        """Start another part, if there is time."""
        self._at = what
        self.check()

    def on_stored(self) -> None:
        """Note that the registry has another part, which the next Job need not push."""
        self._has_stored = True

    def count_seconds(self) -> float:
        """Return the remaining seconds, negative after the end."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise StageFailure, SourceUnreachable, after the end."""
        if self.count_seconds() < 0:
            raise self.describe_end()

    def describe_end(self) -> StageFailure:
        """Return the failure of a push that was ended."""
        ended = f"pushing to {self._repository} was ended after {self._seconds:.0f} s"
        if self._has_stored:
            return unreachable(ended, _GOES_ON)
        return unreachable(f"{ended}, before anything was stored, at {self._at}", _TOO_SLOW)
