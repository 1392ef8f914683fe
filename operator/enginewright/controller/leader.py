"""Who may act: the decisions, without IO and without reading a clock.

Each release has one Lease, in its own namespace. It elects the leader among the release's replicas, as
client-go's does, and while it has a holder it claims what the release watches. No object is common to all
releases, so before it acts a new leader does as in Dekker's algorithm: it writes its own claim, then
reads all others, and withdraws where one of them overlaps. Of two that write at once at least one sees the other.

Clocks of different machines are never compared: a Lease has expired when this process has seen it unchanged
for the time that the Lease itself names, and a leader counts from before it sent its last renewal. Between the two
lies what a request may take that was sent at the last moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

EVERYTHING: Final = "*"  # claims every namespace, and all that is cluster-scoped
WITHDRAWN: Final = 1.0  # seconds: the duration of a Lease that claims nothing
LEASE: Final = 10.0  # seconds: unchanged for so long, a Lease has expired
DEADLINE: Final = 7.0  # seconds that a leader acts after a renewal: it stops before another begins
RESERVED: Final = 5.0  # seconds that a release's own replicas have before another one takes over

LeaseKey: TypeAlias = tuple[str, str]  # namespace and name


@dataclass(frozen=True)
class Record:
    """A Lease's fields."""

    key: LeaseKey
    version: str  # changes with every write
    holder: str  # "" without one
    duration: float
    scope: frozenset[str]  # names of namespaces, or EVERYTHING

    @property
    def withdrawn(self) -> bool:
        """Return whether it claims nothing; one that was handed over stays claimed for a while."""
        return not self.holder and self.duration <= WITHDRAWN


@dataclass(frozen=True)
class _KnownLease:
    version: str
    since: float
    was_held: bool  # else it was released before this process began


@dataclass(frozen=True)
class Take:
    """Write our own Lease with this process as its holder, if it has not changed since it was read."""


@dataclass(frozen=True)
class Withdraw:
    """Release our own claim: another release was first."""

    rival: Record


@dataclass(frozen=True)
class StandBy:
    """Another replica of this release leads, or is about to."""

    holder: str


@dataclass(frozen=True)
class ClaimRefused:
    """Another release has claimed some of the scope."""

    rival: Record


@dataclass(frozen=True)
class Lead:
    """Act."""


def overlap(one: frozenset[str], other: frozenset[str]) -> bool:
    """Return whether two scopes overlap."""
    return bool(one & other) or EVERYTHING in one | other


class Elector:
    """One candidate for leadership. Times are seconds of one monotonic clock."""

    def __init__(self, key: LeaseKey, identity: str, scope: frozenset[str]) -> None:
        self.key = key
        self.identity = identity
        self.scope = scope
        self._seen: dict[LeaseKey, _KnownLease] = {}
        self._written: float | None = None  # when the last write that succeeded was sent
        self._leads = False

    def decide(
        self, records: Iterable[Record], *, sent: float, received: float
    ) -> Take | Withdraw | StandBy | ClaimRefused:
        """Decide what to do while not leading, from all Leases as listed just now."""
        leases = self._take_in(records, received)
        own = leases.get(self.key)
        if rival := self._rival(leases.values(), sent):
            holds = own is not None and own.holder == self.identity
            return Withdraw(rival) if holds else ClaimRefused(rival)
        if own is None or own.holder in ("", self.identity) or self._is_expired(own, sent):
            return Take()
        return StandBy(own.holder)

    def on_written(self, *, sent: float) -> None:
        """Record that our own Lease was written with this process as its holder."""
        self._written = sent

    def confirm(
        self, records: Iterable[Record], *, sent: float, received: float
    ) -> Lead | Withdraw | None:
        """Decide once `Take` is done and all Leases were listed after it; None if that took too long."""
        leases = self._take_in(records, received)
        own = leases.get(self.key)
        if own is None or own.holder != self.identity or not self._in_time(received):
            return None
        if rival := self._rival(leases.values(), sent):
            return Withdraw(rival)
        self._leads = True
        return Lead()

    def may_act(self, now: float) -> bool:
        """Return whether this process leads, by its own clock."""
        return self._leads and self._in_time(now)

    @property
    def has_written(self) -> bool:
        """Return whether the own Lease may still name this process."""
        return self._written is not None

    @property
    def acts_until(self) -> float:
        """Return when it must have stopped unless it renews."""
        return (self._written or 0.0) + DEADLINE

    def step_down(self) -> None:
        """Stop leading, until the next `confirm` if any."""
        self._leads = False

    def _in_time(self, now: float) -> bool:
        return self._written is not None and now < self.acts_until

    def _take_in(self, records: Iterable[Record], now: float) -> dict[LeaseKey, Record]:
        leases = {record.key: record for record in records}
        self._seen = {key: self._sight(record, now) for key, record in leases.items()}
        return leases

    def _sight(self, record: Record, now: float) -> _KnownLease:
        before = self._seen.get(record.key)
        if before is not None and before.version == record.version:
            return before
        was_held = before is not None and before.was_held
        return _KnownLease(record.version, now, was_held=was_held or bool(record.holder))

    def _rival(self, records: Iterable[Record], now: float) -> Record | None:
        """Return another release's claim; always the same one if there are several."""
        rivals = [
            record
            for record in records
            if record.key != self.key
            and not record.withdrawn
            and self._seen[record.key].was_held
            and overlap(self.scope, record.scope)
            and not self._is_expired(record, now, RESERVED)
        ]
        return min(rivals, key=lambda record: record.key, default=None)

    def _is_expired(self, record: Record, now: float, more: float = 0.0) -> bool:
        """Return whether it was not renewed in its time; `now` is when the listing was sent."""
        return now - self._seen[record.key].since >= record.duration + more
