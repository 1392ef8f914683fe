"""Carries out a user's decisions: reads the model, decides, and patches it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from enginewright.kube.client import KubeClient
from enginewright.kube.resources import INFERENCE_MODELS

from enginewright_cli import cluster
from enginewright_cli.rollout import decide
from enginewright_cli.rollout.gitops import reverting
from enginewright_cli.rollout.reading import KnownModel, read_model

MANAGER: Final = "enginewright-cli"  # field manager of what the commands write

_PAUSED: Final = ("spec", "rollout", "paused")


@dataclass(frozen=True)
class _Change:
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    lines: tuple[str, ...]  # to print

    def patch(self, uid: str) -> dict[str, Any]:
        """Return the merge patch of the object with this uid."""
        return {"metadata": {"uid": uid, **self.metadata}, "spec": self.spec}


def rollback(name: str, to: str | None, namespace: str | None, context: str | None) -> list[str]:
    """Roll a model back, by default to the last good revision. Raises Refused and ClusterError."""
    now = datetime.now(UTC)
    return _carry_out(
        lambda current: _annotate(decide.rollback(current.model, current.revisions, to, now)),
        name,
        namespace,
        context,
    )


def promote(name: str, namespace: str | None, context: str | None) -> list[str]:
    """Promote a revision and return what to print; like `rollback`."""
    return _carry_out(
        lambda current: _annotate(decide.promote(current.model, current.revisions)),
        name,
        namespace,
        context,
    )


def pause(name: str, namespace: str | None, context: str | None, *, paused: bool) -> list[str]:
    """Pause or continue rollouts and return what to print; like `rollback`."""
    return _carry_out(lambda current: _set_paused(current, paused), name, namespace, context)


def _carry_out(
    change: Callable[[KnownModel], _Change], name: str, namespace: str | None, context: str | None
) -> list[str]:
    where = namespace or cluster.current_namespace(context)

    async def act(client: KubeClient) -> list[str]:
        current = await read_model(client, where, name)
        decided = change(current)
        if decided.metadata or decided.spec:
            patch = decided.patch(current.model.metadata.uid)
            await client.patch(INFERENCE_MODELS, where, name, patch, manager=MANAGER)
        return list(decided.lines)

    return cluster.query(act, context)


def _annotate(decision: decide.Decision) -> _Change:
    lines = (decision.message, *(f"note: {note}" for note in decision.notes))
    return _Change({"annotations": dict(decision.annotations)}, {}, lines)


def _set_paused(current: KnownModel, paused: bool) -> _Change:
    state = "paused" if paused else "not paused"
    if current.model.spec.rollout.paused is paused:
        return _Change({}, {}, (f"rollouts are {state} already",))
    lines = [f"rollouts are {state} from now on"]
    managed = current.obj["metadata"].get("managedFields") or ()
    if controller := reverting(managed, _PAUSED):
        lines.append(
            f"warning: {controller} manages this model and may revert this: change"
            " spec.rollout.paused in its source as well"
        )
    return _Change({}, {"rollout": {"paused": paused}}, tuple(lines))
