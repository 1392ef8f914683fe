"""The one reader of all that concerns a model: a table of kinds, each of which may be denied or missing.

A user may not read every kind, and half of the answer is better than none: what could not be read is
a sentence of the result, never an error, unless nothing could.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeAlias, TypeVar

from enginewright.api.conditions import ConditionType, find_condition
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.errors import Forbidden, NotFound
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress, PodHttp, ProxiedPodHttp
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    EVENTS,
    HTTP_ROUTES,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from enginewright.manifests.labels import CANARY, COMPONENT, ENGINE, MODEL, SERVE, model_value
from enginewright.observed.jobs import JobView, job_view
from enginewright.observed.nodes import NodeView, node_view
from enginewright.observed.pods import PodView, of_job, pod_view
from enginewright.observed.revisions import RevisionView, revision_view
from enginewright_contract.task import SIDECAR_PORT
from enginewright_contract.verdict import Verdict
from pydantic import ValidationError

from enginewright_cli import cluster
from enginewright_cli.rollout.describe import describe, to_measure
from enginewright_cli.rollout.reading import KnownModel
from enginewright_cli.rollout.result import RolloutAnalysis
from enginewright_cli.rollout.watching import measure

_DENIED: Final = (401, 403)
_AT_ONCE: Final = 8  # requests to pods

# Kinds with the model's label, and those of which a Job for an engine, shared by models, has the engine's
_LABELLED: Final = (JOBS, PODS, DEPLOYMENTS, CONTROLLER_REVISIONS, SERVICES, HTTP_ROUTES)
_OF_ENGINES: Final = (JOBS, PODS)
# Kinds that a cluster may lack
_OPTIONAL: Final = (HTTP_ROUTES,)


@dataclass(frozen=True)
class ModelObjects:
    """All that the cluster holds about one model, as far as it may be read."""

    namespace: str
    name: str
    objects: Mapping[Resource, tuple[JsonObject, ...]]
    unread: tuple[str, ...] = ()  # what could not be read, as sentences
    denied: frozenset[Resource] = frozenset()
    verdicts: Mapping[str, Verdict | str] = field(
        default_factory=dict
    )  # by serving pod, or why it is not known

    @property
    def model(self) -> InferenceModel | None:
        """Return the model, if it may be read."""
        seen = self.objects.get(INFERENCE_MODELS) or ()
        return InferenceModel.model_validate(seen[0]) if seen else None

    @property
    def engines(self) -> tuple[InferenceEngine, ...]:
        """Return the engines that the model's spec needs, and those of its stored revisions."""
        return tuple(map(InferenceEngine.model_validate, self.objects.get(INFERENCE_ENGINES, ())))

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Return the model's and its engines' Jobs."""
        return tuple(map(job_view, self.objects.get(JOBS, ())))

    @property
    def pods(self) -> tuple[PodView, ...]:
        """Return the pods of these Jobs, and those that serve or are to serve, oldest first."""
        views = map(pod_view, self.objects.get(PODS, ()))
        return tuple(sorted(views, key=lambda pod: (pod.created, pod.name)))

    @property
    def serving(self) -> tuple[PodView, ...]:
        """Return the pods that serve or are to serve, without those that end."""
        return tuple(pod for pod in self.pods if _serves(pod) and not pod.leaving)

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Return the nodes of the pods, by name."""
        return {view.name: view for view in map(node_view, self.objects.get(NODES, ()))}

    @property
    def revisions(self) -> tuple[RevisionView, ...]:
        """Return the stored revisions, the newest first."""
        views = map(revision_view, self.objects.get(CONTROLLER_REVISIONS, ()))
        return tuple(sorted(views, key=lambda view: -view.number))

    def pods_of(self, job: str) -> tuple[PodView, ...]:
        """Return a Job's pods, oldest first."""
        return of_job(self.pods, job)


Found = TypeVar("Found")
Compared: TypeAlias = tuple[ModelObjects, RolloutAnalysis | None]


def read(name: str, namespace: str | None, context: str | None) -> ModelObjects:
    """Return what the cluster holds about a model. Raises ClusterError if nothing may be read, or it does not exist."""

    async def keep(client: KubeClient, seen: ModelObjects) -> ModelObjects:
        del client
        return seen

    return query(name, namespace, context, keep)


def query(
    name: str,
    namespace: str | None,
    context: str | None,
    then: Callable[[KubeClient, ModelObjects], Awaitable[Found]],
) -> Found:
    """Read a model as `read`, and return what `then` makes of it with the same client."""
    where = namespace or cluster.current_namespace(context)

    async def look(client: KubeClient) -> Found:
        http = ProxiedPodHttp(partial(load_connection, context))
        try:
            return await then(client, await read_objects(client, http, where, name))
        finally:
            await http.close()

    return cluster.query(look, context)


def read_compared(
    name: str, namespace: str | None, context: str | None
) -> tuple[ModelObjects, RolloutAnalysis | None]:
    """Read a model as `read`, with the comparison of its revisions while there is a canary."""

    async def compare(client: KubeClient, seen: ModelObjects) -> Compared:
        del client
        model = seen.model
        if model is None:
            return seen, None
        http = ProxiedPodHttp(partial(load_connection, context))
        try:
            measured = await measure(http, to_measure(model, seen.serving))
        finally:
            await http.close()
        current = KnownModel(seen.objects[INFERENCE_MODELS][0], model, seen.revisions)
        return seen, describe(current, seen.serving, measured, datetime.now(UTC)).analysis

    return query(name, namespace, context, compare)


async def read_objects(
    api: KubeApi, http: PodHttp | None, namespace: str, name: str
) -> ModelObjects:
    """Return what the cluster holds about a model, with its pods' verdicts if `http` is given. Raises as `read`."""
    reader = _ObjectReader(api, namespace)
    try:
        obj, model = await cluster.read_object(
            api, INFERENCE_MODELS, InferenceModel, namespace, name
        )
        reader.objects[INFERENCE_MODELS] = (obj,)
        engines = [reference.name for reference in model.status.engines]
    except Forbidden as error:
        reader.deny(INFERENCE_MODELS, error)
        engines = []
    labels = [f"{MODEL}={model_value(name)}"]
    await asyncio.gather(
        *(reader.list(resource, labels) for resource in _LABELLED if resource not in _OF_ENGINES),
        *(
            reader.list(
                resource, [*labels, *([f"{ENGINE} in ({','.join(engines)})"] * bool(engines))]
            )
            for resource in _OF_ENGINES
        ),
        reader.list(ACCELERATOR_CLASSES),
    )
    await reader.list(INFERENCE_ENGINES, keep=_is_engine(engines, reader.objects))
    pods = tuple(map(pod_view, reader.objects.get(PODS, ())))
    claims = _claims(reader.objects.get(PODS, ()), reader.objects.get(INFERENCE_MODELS, ()))
    await asyncio.gather(
        *(reader.get(NODES, node) for node in sorted({pod.node for pod in pods} - {""})),
        *(reader.get(CLAIMS, claim) for claim in sorted(claims)),
        reader.list(EVENTS, keep=_is_about(reader.objects, name)),
    )
    if reader.denied.keys() >= {*_LABELLED, INFERENCE_MODELS} - set(_OPTIONAL):
        raise cluster.ClusterError(
            f"you may read nothing of InferenceModel {name} in namespace {namespace}:"
            f" {reader.denied[INFERENCE_MODELS]}; ask for the"
            " ClusterRole view there"
        )
    serving = [pod for pod in pods if _serves(pod) and not pod.leaving and pod.ip]
    verdicts = await _verdicts(http, serving) if http else {}
    return ModelObjects(
        namespace,
        name,
        reader.objects,
        reader.sentences(verdicts),
        frozenset(reader.denied),
        verdicts,
    )


class _ObjectReader:
    """Reads kinds one by one, and notes those that it may not read."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self.objects: dict[Resource, tuple[JsonObject, ...]] = {}
        self.denied: dict[Resource, str] = {}

    def deny(self, resource: Resource, error: Forbidden) -> None:
        """Note that a kind may not be read."""
        self.denied.setdefault(resource, error.message)

    async def list(
        self,
        resource: Resource,
        selectors: Iterable[str | None] = (None,),
        keep: Callable[[JsonObject], bool] = lambda _: True,
    ) -> None:
        """Read the objects of a kind that one of the label selectors selects."""
        where = self._namespace if resource.namespaced else None
        seen: tuple[JsonObject, ...] = ()
        try:
            for labels in selectors:
                listing = await self._api.list(resource, where, labels=labels)
                seen += tuple(filter(keep, listing.items))
        except Forbidden as error:
            self.deny(resource, error)
            return
        except NotFound:
            if resource not in _OPTIONAL:
                raise
        self.objects[resource] = seen

    async def get(self, resource: Resource, name: str) -> None:
        """Read one object, if it exists."""
        where = self._namespace if resource.namespaced else None
        try:
            obj = await self._api.get(resource, where, name)
        except Forbidden as error:
            self.deny(resource, error)
        except NotFound:
            return
        else:
            self.objects[resource] = (*self.objects.get(resource, ()), obj)

    def sentences(self, verdicts: Mapping[str, Verdict | str]) -> tuple[str, ...]:
        """Return what could not be read."""
        kinds = sorted(resource.plural for resource in self.denied)
        denied = [f"you may not read {', '.join(kinds)}"] if kinds else []
        return (*denied, *sorted({why for why in verdicts.values() if isinstance(why, str)}))


def _serves(pod: PodView) -> bool:
    return pod.label(COMPONENT) in (SERVE, CANARY)


def _claims(pods: Iterable[JsonObject], models: Iterable[JsonObject]) -> set[str]:
    """Return the names of the claims that pods mount, and of those that the model names."""
    mounted = {
        str(volume["persistentVolumeClaim"]["claimName"])
        for pod in pods
        for volume in (pod.get("spec") or {}).get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    }
    uris = (str(((obj.get("spec") or {}).get("source") or {}).get("uri") or "") for obj in models)
    named = {
        uri.removeprefix("pvc://").partition("/")[0] for uri in uris if uri.startswith("pvc://")
    }
    return mounted | named


def _is_engine(
    names: Iterable[str], objects: Mapping[Resource, Iterable[JsonObject]]
) -> Callable[[JsonObject], bool]:
    """Return what tells whether an engine has one of the names, or a stored revision runs it."""
    views = map(revision_view, objects.get(CONTROLLER_REVISIONS, ()))
    keys = {one.engine_key for view in views if view.kept for one in view.kept.snapshot.classes}

    def keep(engine: JsonObject) -> bool:
        return engine["metadata"]["name"] in names or engine["spec"].get("key") in keys

    return keep


def _is_about(
    objects: Mapping[Resource, Iterable[JsonObject]], name: str
) -> Callable[[JsonObject], bool]:
    """Return what tells whether an Event is about one of the objects, or about the model."""
    uids = {obj["metadata"].get("uid") for seen in objects.values() for obj in seen}

    def keep(event: JsonObject) -> bool:
        about = event.get("involvedObject") or {}
        is_of_model = (about.get("kind"), about.get("name")) == (INFERENCE_MODELS.kind, name)
        return about.get("uid") in uids or (is_of_model and not objects.get(INFERENCE_MODELS))

    return keep


async def _verdicts(http: PodHttp, pods: Iterable[PodView]) -> dict[str, Verdict | str]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: PodView) -> tuple[str, Verdict | str]:
        async with limit:
            return pod.name, await _verdict(http, pod)

    return dict(await asyncio.gather(*map(one, pods)))


async def _verdict(http: PodHttp, pod: PodView) -> Verdict | str:
    address = PodAddress(pod.namespace, pod.name, pod.ip, SIDECAR_PORT)
    try:
        return Verdict.model_validate_json(await http.get(address, "/verdict"))
    except NoAnswer as error:
        return f"the sidecar of pod {pod.name} does not answer: {error}"
    except BadAnswer as error:
        if error.status in _DENIED:
            return "you may not read pods' verdicts: they need the verb get on pods/proxy"
        return f"the sidecar of pod {pod.name} does not answer as expected: {error}"
    except ValidationError:
        return f"pod {pod.name} reports its verdict in the format of another version"


def is_ready(engine: InferenceEngine) -> bool:
    """Return whether an engine is built and in the store."""
    ready = find_condition(engine.status.conditions, ConditionType.READY)
    return ready is not None and ready.status == "True"
