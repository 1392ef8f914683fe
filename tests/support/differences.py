"""What there is at the end of two runs, compared without what differs from run to run."""

import copy
import re
from collections.abc import Iterator
from typing import Any, Final

from enginewright.api.inference_model import InferenceModel
from enginewright.controller.execute import INTENT_ANNOTATION
from enginewright.manifests.labels import OUTCOME
from enginewright.manifests.outcome import RevisionOutcome

from tests.support.plan_objects import Json

_TIMES: Final = {
    "lookedAt",
    "lastTransitionTime",
    "since",
    "freedAt",
    "at",
    "time",
    "startedAt",
    "completedAt",
}
_SERVERS: Final = {
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "clusterIP",
    "clusterIPs",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    INTENT_ANNOTATION,  # a hash that covers the owner's uid
}


def comparable(obj: Json) -> Json:
    """Return an object without times, what the API server sets, and figures that differ at each poll.

    Of statuses only a model's, which the operator writes.
    """
    metadata = dict(obj["metadata"])
    metadata["ownerReferences"] = [item["name"] for item in metadata.get("ownerReferences", ())]
    if revision_outcome := RevisionOutcome.read(metadata.get("annotations") or {}):
        outcome = revision_outcome.model_dump(mode="json", exclude={"at"})
        metadata["annotations"] = {**metadata["annotations"], OUTCOME: outcome}
    status = {"status": copy.deepcopy(obj["status"])} if obj["kind"] == InferenceModel.kind else {}
    for item in status.values():
        # not known any more of a revision that was restored; also if another was never recorded
        item["applied"].pop("specHash", None)
    rest: Json = _strip(
        {
            "metadata": metadata,
            **status,
            **{key: item for key, item in obj.items() if key in ("spec", "data")},
        }
    )
    return rest


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the fields in which two JSON values differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{path}[{at}]")
    elif one != other:
        yield f"{path}: {one} != {other}"


def _strip(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(
            r"[\d.]+ times|limit [\d.]+"
            r'|"shadow_token":"\w+"',  # derived from the model's uid
            "…",
            value,
        )
    if isinstance(value, dict):
        return {key: _strip(item) for key, item in value.items() if key not in _TIMES | _SERVERS}
    if isinstance(value, list | tuple):
        return [_strip(item) for item in value]
    return value
