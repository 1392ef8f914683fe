"""All models at once, read again every few seconds: what each does, and why it is not Ready."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from enginewright.api.conditions import ConditionType, find_condition
from enginewright.api.inference_model import InferenceModel
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.resources import INFERENCE_MODELS

from enginewright_cli import cluster
from enginewright_cli.diagnose.result import ModelRow

INTERVAL: Final = 2.0  # seconds between two looks


def watch(
    namespace: str | None,
    context: str | None,
    show: Callable[[Sequence[ModelRow]], None],
    *,
    is_everywhere: bool,
    once: bool,
) -> None:
    """Show all models of a namespace, or of all, `once` or until an interrupt. Raises ClusterError."""
    where = None if is_everywhere else namespace or cluster.current_namespace(context)

    async def look(client: KubeClient) -> None:
        while True:
            listing = await client.list(INFERENCE_MODELS, where)
            show(list_rows(listing.items))
            if once:
                return
            await asyncio.sleep(INTERVAL)

    cluster.query(look, context)


def list_rows(objects: Iterable[JsonObject]) -> list[ModelRow]:
    """Return a row for each model: those that are not ready first, then by name."""
    rows = [_row(InferenceModel.model_validate(obj)) for obj in objects]
    return sorted(rows, key=lambda row: (row.ready == "True", row.namespace, row.name))


def _row(model: InferenceModel) -> ModelRow:
    status = model.status
    ready = find_condition(status.conditions, ConditionType.READY)
    return ModelRow(
        namespace=model.metadata.namespace,
        name=model.metadata.name,
        ready=ready.status if ready else "",
        reason=ready.reason if ready else "",
        message=ready.message if ready and ready.status != "True" else "",
        doing=_doing(model),
        classes=status.summary.classes,
        placement=status.summary.placement,
        since=ready.last_transition_time if ready else None,
    )


def _doing(model: InferenceModel) -> str:
    status = model.status
    if target := status.target:
        steps = 1 + len(model.spec.rollout.canary.steps)
        return f"{target.phase} {target.step}/{steps}" if target.step else str(target.phase)
    preparation = status.preparation
    if (
        preparation
        and preparation.stage
        and not (preparation.failure and preparation.failure.lasting)
    ):
        return preparation.stage
    return ""
