"""When a rejected backend is a candidate again with the inputs that it failed with: nodes or its user say so.

It is then rolled out as every other change. A node that joins may have what the others lacked, such as a driver; a node
that was repaired looks as before, so its user asks by an annotation.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Repeats, reason_named

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model_status import RejectedBackend
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import RETRY
from enginewright.plan.classes import matching
from enginewright.plan.types import Facts

_LONGEST: Final = 64  # characters; longer values of the annotation are hashed


def is_readmitted(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> bool:
    """Return whether a rejected backend is tried again although it would be with the same inputs."""
    if rejected.rejected_at is None:  # by an earlier release: from now on it is known
        return False
    asked = _asked(facts)
    if asked and asked != rejected.retry:
        return True
    reason = reason_named(rejected.reason)
    return (
        reason is not None
        and reason.facets.repeats is not Repeats.EVERYWHERE
        and bool(rejected.revision)
        and _serves_meanwhile(facts)
        and any(each > rejected.rejected_at for each in _joined(facts, classes))
    )


def rejection_recorded(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> RejectedBackend:
    """Return the rejection with what must differ for it to end: the annotation, or the newest node."""
    # nodes have the API server's clock: one that is ahead of ours joins but once
    since = max((whole_second(facts.now), *_joined(facts, classes)))
    return rejected.model_copy(update={"rejected_at": since, "retry": _asked(facts)})


def _asked(facts: Facts) -> str:
    """Return the annotation's value; empty: there is none."""
    value = facts.model.metadata.annotations.get(RETRY, "")
    return sha256_text(value) if len(value) > _LONGEST else value


def _serves_meanwhile(facts: Facts) -> bool:
    """Return whether pods serve that another attempt leaves alone: no node may stop what serves."""
    is_replaced = facts.model.spec.rollout.strategy == "Recreate"
    return not is_replaced and any(each.available for each in facts.deployments)


def _joined(facts: Facts, classes: Sequence[AcceleratorClass]) -> list[datetime]:
    """Return when the nodes of the classes joined."""
    nodes = (node for each in classes for node in matching(each, facts.nodes))
    return [datetime.fromisoformat(node.created) for node in nodes if node.created]
