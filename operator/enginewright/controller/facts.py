"""What is known about one model, for its reconciliation and for `enginewright plan`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from enginewright_contract.images import ImageFacts
from enginewright_contract.measurements import Measurements
from enginewright_contract.verdict import Verdict
from typing_extensions import override

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import EngineReference
from enginewright.controller.cache import ObjectCache
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.indices import PREPARED, RECORD, is_unbuilt
from enginewright.controller.observe import (
    AUTOSCALER,
    BUDGET,
    CLAIM,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    ROUTE,
    SERVICE,
    Kind,
    Viewed,
)
from enginewright.controller.parse import parse_objects
from enginewright.controller.references import references
from enginewright.controller.routing import EngineKey
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIM_TEMPLATES,
    CLAIMS,
    INFERENCE_ENGINES,
    NODES,
)
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView
from enginewright.plan.types import Config, Facts


def gather(
    cache: ObjectCache,
    model: InferenceModel,
    config: Config,
    now: datetime,
    images: Mapping[str, ImageFacts],
    *,
    image_failures: Mapping[str, str] | None = None,
    bucket_user: str | None = None,
    may_move: bool = True,
    jobs: Iterable[JobView] | None = None,
    verdicts: Callable[[Iterable[PodView]], Mapping[str, Verdict]] = lambda _pods: {},
    silent: Callable[[Iterable[PodView]], frozenset[str]] = lambda _pods: frozenset(),
    measured: Callable[[Iterable[PodView]], Mapping[str, Measurements | None]] = lambda _pods: {},
) -> Facts:
    """Return the facts that a plan of a model is made from.

    `model` may be newer than the cached one; `now` is timezone-aware; images are named by reference, and
    pods by name; `jobs` are by default those in the cache.
    """
    namespace, name, uid = model.metadata.namespace, model.metadata.name, model.metadata.uid

    def children(kind: Kind[Viewed]) -> tuple[Viewed, ...]:
        labelled = cache.views(kind, cache.of_model(kind.resource, namespace, name))
        return of_owner(uid, labelled)

    own_jobs = children(JOB) if jobs is None else of_owner(uid, jobs)
    pods = of_jobs(own_jobs, cache.views(POD, cache.of_model(POD.resource, namespace, name)))
    deployments = children(DEPLOYMENT)
    claim = cache.get(CLAIMS, namespace, config.store.claim)
    engines = {reference.name for reference in model.status.engines}
    unbuilt = _find_unbuilt(cache, namespace, engines)
    return Facts(
        model=model,
        config=config,
        now=now,
        classes=tuple(parse_objects(AcceleratorClass, cache.all(ACCELERATOR_CLASSES))),
        nodes=cache.views(NODE, cache.all(NODES)),
        images=images,
        image_failures=image_failures or {},
        bucket_user=bucket_user,
        may_move=may_move,
        store=next(iter(cache.views(CLAIM, (claim,) if claim else ())), None),
        jobs=own_jobs,
        pods=pods,
        deployments=tuple(deployment for deployment in deployments if deployment.is_serving),
        canaries=tuple(deployment for deployment in deployments if deployment.is_canary),
        trials=tuple(deployment for deployment in deployments if deployment.is_trial),
        budgets=children(BUDGET),
        autoscalers=children(AUTOSCALER),
        services=children(SERVICE),
        routes=children(ROUTE) if cache.is_known(ROUTE.resource) else None,
        has_device_claims=cache.is_known(CLAIM_TEMPLATES),
        revisions=children(REVISION),
        engines=_Engines(cache, namespace),
        find_built_from=partial(_find_engines, cache, namespace, PREPARED),
        find_recorded=partial(_find_engines, cache, namespace, RECORD),
        engine_pods={
            item: cache.views(POD, cache.of_engine(POD.resource, namespace, item))
            for item in engines
        },
        orphaned_engines=frozenset(
            engine
            for engine, (requester, by_model) in unbuilt.items()
            if requester and requester not in by_model
        ),
        freed_elsewhere=frozenset(
            engine
            for engine, (_, by_model) in unbuilt.items()
            if model.spec.rollout.strategy == "Recreate"
            and any(reference.freed_at for other, reference in by_model.items() if other != name)
        ),
        verdicts=verdicts(pods),
        silent=silent(pods),
        measurements=measured(pods),
    )


def _find_unbuilt(
    cache: ObjectCache, namespace: str, names: Iterable[str]
) -> dict[str, tuple[str, dict[str, EngineReference]]]:
    """Return requester ("" if none) and references by model of each unbuilt engine: built ones depend on neither."""
    unbuilt = {}
    for name in names:
        engine = cache.get(INFERENCE_ENGINES, namespace, name)
        if engine is not None and is_unbuilt(engine):
            requester = (engine["metadata"].get("annotations") or {}).get(REQUESTED_BY, "")
            unbuilt[name] = requester, references(cache, EngineKey(namespace, name))
    return unbuilt


def _find_engines(
    cache: ObjectCache, namespace: str, index: str, value: str
) -> list[InferenceEngine]:
    return parse_objects(InferenceEngine, cache.find(INFERENCE_ENGINES, namespace, index, value))


class _Engines(Mapping[str, InferenceEngine]):
    """A namespace's InferenceEngines by name, parsed on access: a plan reads few of them. Invalid ones are missing."""

    def __init__(self, cache: ObjectCache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    @override
    def __getitem__(self, name: str) -> InferenceEngine:
        observed = self._cache.get(INFERENCE_ENGINES, self._namespace, name)
        for engine in parse_objects(InferenceEngine, (observed,) if observed else ()):
            return engine
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._cache.names(INFERENCE_ENGINES, self._namespace))

    @override
    def __len__(self) -> int:
        return len(self._cache.names(INFERENCE_ENGINES, self._namespace))
