"""What the operator reads of an object, and of the copy in its cache."""

from typing import Final

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.controller import observe
from enginewright.controller.observe import Kind
from enginewright.controller.packing import Packer
from enginewright.controller.slim import slim, without_version
from enginewright.kube.resources import resource_of
from enginewright.observed.artifact_keys import keys_in, keys_of_pods

from tests.support.plan_objects import Json

_VIEWS: Final = {kind.resource: kind for kind in vars(observe).values() if isinstance(kind, Kind)}
_TYPED: Final = {typed.kind: typed for typed in (InferenceModel, InferenceEngine)}


class CachedCopies:
    """Copies as the cache keeps them."""

    def __init__(self) -> None:
        self._packers: dict[str, Packer] = {}

    def make_copy(self, obj: Json) -> Json:
        """Return what the cache returns of an object."""
        kept = slim(resource_of(obj["apiVersion"], obj["kind"]), obj)
        packer = self._packers.setdefault(obj["kind"], Packer())
        version = obj["metadata"]["resourceVersion"]
        return packer.pack(without_version(kept), version).unpack()


def read(obj: Json) -> list[object]:
    """Return all that is read of an object."""
    kind, typed = _VIEWS.get(resource_of(obj["apiVersion"], obj["kind"])), _TYPED.get(obj["kind"])
    facts: list[object] = [kind.view(obj)] if kind else []
    facts += [typed.model_validate(obj)] if typed else []
    if obj["kind"] in ("Deployment", "Job"):
        facts.append(keys_of_pods(obj))
    if obj["kind"] == "ControllerRevision":
        facts.append(keys_in(obj["data"]))
    return facts
