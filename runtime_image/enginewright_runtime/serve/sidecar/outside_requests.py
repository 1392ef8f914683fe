"""Whether requests outside the shape profiles fall back to the CPU, from the server's count of them. Pure.

One such request is a fallback, and the next may come minutes later. So that conditions do not change with
each, the fallback is active until there has been none for `outside_seconds`.
"""

from enginewright.contract.execution import OutsideProfiles

from enginewright_runtime.serve.sidecar.settings import SidecarSettings


class OutsideRequests:
    """When such requests ran last, also before a restart of the server."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._seconds = settings.outside_seconds
        self._known = 0
        self._until = float("-inf")
        self._provider: str | None = None

    def add(self, reported: OutsideProfiles | None, now: float) -> None:
        """Record what the server reports at `now`."""
        requests = reported.requests if reported else 0
        # a lower count is that of a new server process; what a new sidecar finds counts as recent
        if reported and requests and requests != self._known:
            self._until = now + self._seconds
            self._provider = reported.provider
        self._known = requests

    def provider(self, now: float) -> str | None:
        """Return the execution provider that has run some recently; None: there were none."""
        return self._provider if now < self._until else None
