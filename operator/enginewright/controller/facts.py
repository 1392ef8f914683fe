"""What is known about one model, for its reconciliation and for `enginewright plan`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from typing_extensions import override

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.contract.images import ImageFacts
from enginewright.contract.verdict import Verdict
from enginewright.controller.cache import ObjectCache
from enginewright.controller.children import of_jobs, of_owner
from enginewright.controller.observe import (
    BUDGET,
    CLAIM,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    Kind,
    Viewed,
)
from enginewright.controller.parse import parsed
from enginewright.controller.references import frees_elsewhere, is_orphaned
from enginewright.controller.routing import EngineKey
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import ACCELERATOR_CLASSES, CLAIMS, INFERENCE_ENGINES, NODES
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
    verdicts: Callable[[Iterable[PodView]], Mapping[str, Verdict]] = lambda _pods: {},
    silent: Callable[[Iterable[PodView]], frozenset[str]] = lambda _pods: frozenset(),
) -> Facts:
    """Return the facts that a plan of a model is made from.

    Args:
        cache: of the API server's objects.
        model: may be newer than the cached one.
        config: the operator's.
        now: timezone-aware.
        images: what the probed images contain, by reference.
        image_failures: why images could not be probed, by reference.
        verdicts: of the sidecars of pods, by name.
        silent: which pods' sidecars have not responded for a long time.
    """
    namespace, name, uid = model.metadata.namespace, model.metadata.name, model.metadata.uid

    def children(kind: Kind[Viewed]) -> tuple[Viewed, ...]:
        labelled = cache.views(kind, cache.of_model(kind.resource, namespace, name))
        return of_owner(uid, labelled)

    jobs = children(JOB)
    pods = of_jobs(jobs, cache.views(POD, cache.of_model(POD.resource, namespace, name)))
    deployments = children(DEPLOYMENT)
    claim = cache.get(CLAIMS, namespace, config.store.claim)
    recreates = model.spec.rollout.strategy == "Recreate"
    wanted = [EngineKey(namespace, each.name) for each in model.status.engines]
    return Facts(
        model=model,
        config=config,
        now=now,
        classes=tuple(parsed(AcceleratorClass, cache.all(ACCELERATOR_CLASSES))),
        nodes=cache.views(NODE, cache.all(NODES)),
        images=images,
        image_failures=image_failures or {},
        store=next(iter(cache.views(CLAIM, (claim,) if claim else ())), None),
        jobs=jobs,
        pods=pods,
        deployments=tuple(each for each in deployments if not each.is_trial),
        trials=tuple(each for each in deployments if each.is_trial),
        budgets=children(BUDGET),
        revisions=children(REVISION),
        engines=_Engines(cache, namespace),
        engine_pods={
            each.name: cache.views(POD, cache.of_engine(POD.resource, namespace, each.name))
            for each in wanted
        },
        orphaned_engines=frozenset(each.name for each in wanted if is_orphaned(cache, each)),
        freed_elsewhere=frozenset(
            each.name for each in wanted if recreates and frees_elsewhere(cache, each, name)
        ),
        verdicts=verdicts(pods),
        silent=silent(pods),
    )


class _Engines(Mapping[str, InferenceEngine]):
    """A namespace's InferenceEngines by name, parsed on access; an invalid one is missing.

    A model's plan reads the few that it needs; a namespace may have hundreds.
    """

    def __init__(self, cache: ObjectCache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    @override
    def __getitem__(self, name: str) -> InferenceEngine:
        observed = self._cache.get(INFERENCE_ENGINES, self._namespace, name)
        for engine in parsed(InferenceEngine, (observed,) if observed else ()):
            return engine
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return (each["metadata"]["name"] for each in self._here())

    @override
    def __len__(self) -> int:
        return len(self._here())

    def _here(self) -> list[JsonObject]:
        return [
            each
            for each in self._cache.all(INFERENCE_ENGINES)
            if each["metadata"].get("namespace") == self._namespace
        ]
