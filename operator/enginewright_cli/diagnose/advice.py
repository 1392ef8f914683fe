"""What to do about a chain of statements: the remedy of the deepest cause, and the command that comes next.

Reasons have their remedies in the contract; which command shows or mends the cause follows from who
is at fault, or from what the operator waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.manifests.labels import MODEL, REFRESH, model_value
from enginewright_contract.reasons import Fault, Reason, reason_named

from enginewright_cli.diagnose.reading import ModelObjects
from enginewright_cli.diagnose.result import Link
from enginewright_cli.images import CHART_NAMESPACE

# {n}: the namespace, {m}: the model, {o}: the object of the cause as KIND/NAME, {x}: its name
_EDIT: Final = "kubectl -n {n} edit inferencemodel {m}"
_DESCRIBE: Final = "kubectl -n {n} describe {o}"
_BY_FAULT: Final = {
    Fault.SOURCE: _EDIT,
    Fault.MODEL: "enginewright preflight MODEL.onnx",
    Fault.SPEC: _EDIT,
    Fault.USER: _EDIT,
    Fault.BACKEND: "kubectl get acceleratorclasses",
    Fault.REVISION: "kubectl enginewright diff {m} -n {n}",
    Fault.LOAD: "kubectl enginewright logs {m} -n {n}",
    Fault.NODE: _DESCRIBE,
    Fault.ARTIFACT: "kubectl enginewright logs {m} -n {n}",
    Fault.STORE: "kubectl -n {n} describe persistentvolumeclaims",
    Fault.PRODUCT: "kubectl enginewright bundle {m} -n {n}",
}
_CLASSES: Final = "kubectl get acceleratorclasses"
_ALLOW_CHANGE: Final = """kubectl -n {n} patch inferencemodel {m} --type merge --patch '{{"spec":{{"rollout":{{"allowSignatureChange":true}}}}}}'"""
_OPERATOR: Final = f"kubectl -n {CHART_NAMESPACE} get deployments,pods"
_BY_REASON: Final = {  # what only the operator says: remedy, command
    StatusReason.SUSPENDED: ("continue the rollout", "kubectl enginewright resume {m} -n {n}"),
    StatusReason.SIGNATURE_CHANGED: (
        "tell the clients, then allow it in the spec",
        _ALLOW_CHANGE,
    ),
    StatusReason.ROLLED_BACK_BY_USER: (
        "change the spec, or take the rollback back",
        "kubectl enginewright promote {m} -n {n}",
    ),
    StatusReason.CLAIM_NOT_FOUND: (
        "create the PersistentVolumeClaim, or name another one",
        "kubectl -n {n} get persistentvolumeclaims",
    ),
    StatusReason.CLAIM_NOT_BOUND: (
        "give the PersistentVolumeClaim a volume: check its storage class",
        "kubectl -n {n} describe persistentvolumeclaims",
    ),
    StatusReason.SHARED_PREPARATION: ("", "kubectl enginewright explain {x} -n {n}"),
    StatusReason.NODE_NOT_READY: ("repair the node, or delete its pods", "kubectl describe {o}"),
    StatusReason.NO_ACCELERATOR_CLASS: ("create an AcceleratorClass", _CLASSES),
    StatusReason.UNKNOWN_ACCELERATOR_CLASS: ("name a class that exists", _CLASSES),
    StatusReason.AMBIGUOUS_ACCELERATOR_CLASS: ("name one of them in spec.accelerators", _CLASSES),
    StatusReason.NO_MATCHING_NODE: (
        "label a node for the class",
        "kubectl get nodes --show-labels",
    ),
    StatusReason.QUEUED: ("", _DESCRIBE),
}
_KINDS: Final = ("Pod", "Job", "Node", "Deployment", "InferenceModel", "InferenceEngine")
_WATCH: Final = "kubectl enginewright status {m} -n {n} --watch"
_UNRESOLVED: Final = "kubectl -n {n} describe inferencemodel {m}"


@dataclass(frozen=True)
class Advice:
    """The cause, and what to do about it."""

    cause: Link | None
    remedy: str
    command: str


def advise(seen: ModelObjects, chain: Sequence[Link]) -> Advice:
    """Return the deepest statement whose reason has a remedy, that remedy, and the next command."""
    deepest = [link for link in reversed(chain) if link.part != "Event"]
    for link in deepest:
        reason = reason_named(link.reason)
        if reason is not None:
            remedy = link.remedy or reason.remedy
            return Advice(link, remedy, _fill(_command(reason), seen, link))
        if link.reason in _BY_REASON:
            remedy, command = _BY_REASON[StatusReason(link.reason)]
            return Advice(link, remedy, _fill(command, seen, link))
    if seen.model is None:
        return Advice(None, "", "")
    if chain and chain[0].part == "status":
        remedy = "check that the operator runs and that its log has no error"
        return Advice(chain[0], remedy, _OPERATOR)
    is_stalled = any(link.reason == StatusReason.APPLY_FAILED for link in chain)
    if chain and chain[-1].part == "Event":
        return Advice(chain[-1], "", _fill(_DESCRIBE, seen, chain[-1]))
    last = deepest[0] if deepest else None
    return Advice(last, "", _fill(_UNRESOLVED if is_stalled else _WATCH, seen, last))


def _command(reason: Reason) -> str:
    if reason is Reason.SOURCE_CHANGED:
        return f'kubectl -n {{n}} annotate inferencemodel {{m}} {REFRESH}="$(date)" --overwrite'
    if reason is Reason.CAPACITY_BLOCKED:
        return _DESCRIBE
    return _BY_FAULT[reason.facets.fault]


def _fill(command: str, seen: ModelObjects, link: Link | None) -> str:
    kind, _, name = link.object.partition(" ") if link else ("", "", "")
    pods = f"pods -l {MODEL}={model_value(seen.name)}"
    obj = f"{kind.lower()}/{name}" if kind in _KINDS else pods
    return command.format(n=seen.namespace, m=seen.name, o=obj, x=name)
