"""Which models use an engine. Pure.

A model uses the engines that its spec needs now, and those that its stored revisions run or could be
rolled back to. Where a revision is not known it may run any engine, so the model counts as a user of all:
what serves must never appear unused.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from enginewright.api.inference_engine import InferenceEngine
from enginewright.observed.revisions import RevisionView


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
