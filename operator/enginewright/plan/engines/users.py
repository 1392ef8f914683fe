"""Which models use an engine, how that is recorded in its status, and when one that nothing needs is removed. Pure.

A model uses the engines that its spec needs now, and those that its stored revisions run or could be
rolled back to. Where a revision is not known it may run any engine, so the model counts as a user of all:
what serves must never appear unused. Removing an InferenceEngine removes neither the engine from the store, which a
collection does, nor anything that serves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright.api.inference_engine import EngineUsers, InferenceEngine, InferenceEngineStatus
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.observed.revisions import RevisionView
from enginewright.plan.types import CollectionConfig

RECORDED_EVERY: Final = timedelta(hours=1)  # in status.lastUsed
_NAMED: Final = 5


@dataclass(frozen=True)
class EngineUse:
    """The engines that one model uses."""

    model: str
    names: frozenset[str] = frozenset()  # InferenceEngines that its spec needs
    keys: frozenset[str] = frozenset()  # engines that its revisions run
    is_known: bool = True  # False: it has a revision that may run any engine

    def includes(self, name: str, key: str) -> bool:
        """Return whether it may use an InferenceEngine of this name, whose engine has this key."""
        return name in self.names or key in self.keys or not self.is_known


def engine_use(
    model: str,
    names: Iterable[str],
    revisions: Iterable[RevisionView],
    carried: Iterable[str] = (),
) -> EngineUse:
    """Return the engines that a model uses.

    Args:
        model: its name.
        names: of the InferenceEngines that its spec needs, as in its status.
        revisions: all that are stored.
        carried: revisions that its Deployments have: unless they are stored, their engines are not known.
    """
    stored = {each.revision: each.kept for each in revisions}
    kept = {name: each.snapshot for name, each in stored.items() if each}
    keys = {one.engine_key for each in kept.values() for one in each.classes if one.engine_key}
    return EngineUse(
        model=model,
        names=frozenset(names),
        keys=frozenset(keys),
        is_known=stored.keys() | set(carried) <= kept.keys(),
    )


def users_of(engine: InferenceEngine, uses: Iterable[EngineUse]) -> tuple[str, ...]:
    """Return the models that use an engine, in alphabetical order; `uses` are those of its namespace."""
    name, key = engine.metadata.name, engine.spec.key
    return tuple(sorted(each.model for each in uses if each.includes(name, key)))


@dataclass(frozen=True)
class RecordedUse:
    """What the status says about an engine's users, and when that is out of date although nothing happens."""

    users: EngineUsers
    last_used: datetime | None
    due_in: float | None = None  # seconds; None: never


def recorded_use(before: InferenceEngineStatus, users: Sequence[str], now: datetime) -> RecordedUse:
    """Return the users to record, and the time of the last use: to the hour while there is a user.

    `now` is timezone-aware. When the last user has gone is recorded exactly.
    """
    used = before.last_used
    age = now - used if used else RECORDED_EVERY
    is_old = not timedelta() <= age < RECORDED_EVERY  # also if the clock was set back
    has_ended = not users and before.users is not None and before.users.count > 0
    if (users and is_old) or has_ended:
        used, age = whole_second(now), timedelta()
    return RecordedUse(
        users=EngineUsers(count=len(users), models=tuple(users[:_NAMED])),
        last_used=used,
        due_in=(RECORDED_EVERY - age).total_seconds() if users else None,
    )


def unused_since(engine: InferenceEngine, now: datetime, *, needed: bool) -> datetime | None:
    """Return since when nothing needs the engine; None: it is needed, or a user has created it."""
    if needed or REQUESTED_BY not in engine.metadata.annotations:
        return None
    return engine.status.unused_since or whole_second(now)


def seconds_left(since: datetime | None, config: CollectionConfig, now: datetime) -> float | None:
    """Return in how many seconds an engine unused `since` then is removed; None: it stays."""
    if since is None or config.unused_for is None or config.dry_run or not config.enabled:
        return None
    return (since + config.unused_for - now).total_seconds()
