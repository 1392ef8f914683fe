"""Reads an InferenceModel, its revisions and its pods from the cluster."""

from dataclasses import dataclass

from enginewright.api.inference_model import InferenceModel
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import Forbidden
from enginewright.kube.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS, PODS
from enginewright.manifests.labels import CANARY, COMPONENT, MODEL, SERVE, model_value
from enginewright.observed.pods import PodView, pod_view
from enginewright.observed.revisions import RevisionView, revision_view

from enginewright_cli.cluster import read_object


@dataclass(frozen=True)
class KnownModel:
    """A model and its revisions."""

    obj: JsonObject  # as the API server sends it
    model: InferenceModel
    revisions: tuple[RevisionView, ...]  # the newest first


async def read_model(api: KubeApi, namespace: str, name: str) -> KnownModel:
    """Return a model and its revisions. Raises ClusterError and KubeError."""
    obj, model = await read_object(api, INFERENCE_MODELS, InferenceModel, namespace, name)
    listing = await api.list(CONTROLLER_REVISIONS, namespace, labels=f"{MODEL}={model_value(name)}")
    revisions = map(revision_view, listing.items)
    # not those of a deleted model of this name
    mine = [revision for revision in revisions if model.metadata.uid in revision.owners.values()]
    mine.sort(key=lambda view: view.number, reverse=True)
    return KnownModel(obj, model, tuple(mine))


async def read_pods(api: KubeApi, current: KnownModel) -> tuple[PodView, ...] | None:
    """Return a model's pods that serve or are to serve, or None if access is forbidden."""
    metadata = current.model.metadata
    selector = f"{MODEL}={model_value(metadata.name)},{COMPONENT} in ({SERVE},{CANARY})"
    try:
        listing = await api.list(PODS, metadata.namespace, labels=selector)
    except Forbidden:
        return None
    return tuple(pod for pod in map(pod_view, listing.items) if not pod.leaving)
