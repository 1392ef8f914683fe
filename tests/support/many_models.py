"""Models and engines, of one namespace unless a test says otherwise, that share preparations, builds and limits, over an API server in memory.

The operator's own controllers, router and cache; only the queues are simpler: a key is worked on at once, and again
as long as that changes anything.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from enginewright.controller.bucket_user import BucketUser
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.engine_uses import EngineUses
from enginewright.controller.engines import EngineReconciler
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.job_turns import JobTurns
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import EngineKey, ModelKey, Router, Sinks
from enginewright.controller.shared import Shared, utc_now
from enginewright.controller.single_flight import SingleFlight
from enginewright.kube.api import KubeApi
from enginewright.kube.errors import Forbidden, KubeError, Transient
from enginewright.plan.plan import plan
from enginewright.plan.types import Config
from prometheus_client import CollectorRegistry
from typing_extensions import override

from tests.support.fake_kube import at_once, timestamp
from tests.support.listings import route
from tests.support.plan_objects import CPU_IMAGE, KINDS, Json, image_facts, make_object, node
from tests.support.plan_world import CONFIG, conditions_of
from tests.support.simulation import Simulation

SOURCE: Final = "https://models.example/resnet.onnx"
_ROUNDS: Final = 2000
_QUOTA: Final = Forbidden("quota", code=403)


class _Images:
    """What all configured images contain."""

    def __init__(self) -> None:
        self.facts = {CPU_IMAGE: image_facts("cpu")}
        self.failures: dict[str, str] = {}

    def require(self, images: object) -> None:
        pass


class ManyModels(Simulation):
    """A namespace with one class, and the operator's process."""

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.jobs_meant = "prepare"
        self.config = replace(config, images={"cpu": CPU_IMAGE})
        self.images = _Images()
        self.errors: list[KubeError] = []
        for name in ("node-1", "node-2"):
            self.kube.put(node(name))
        spec = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
        self.kube.put(make_object("AcceleratorClass", "cpu", spec=spec))
        self.restart()

    @property
    def api(self) -> KubeApi:
        """Return the API server as the operator reaches it."""
        return self.kube

    def restart(self) -> Self:
        """Start the process again, with empty memory."""
        cache = ObjectCache()
        for resource in KINDS.values():  # the API server has all of them
            cache.know_kind(resource)
        self.due: dict[ModelKey | EngineKey, None] = {}
        self.later_at: dict[ModelKey | EngineKey, datetime] = {}
        self.passes: Counter[str] = Counter()
        self.router = Router(
            cache,
            Sinks(
                model=self._add,
                engine=self._add_engine,
                accelerator_class=lambda _name: None,
                image=lambda _key: None,
                collection=lambda _key: None,
                proposals=lambda: None,
                lazily=self._add_lazily,
            ),
        )
        shared = Shared(
            config=self.config,
            api=self.api,
            cache=cache,
            pods=PodCatchUp(self.api, cache),
            executor=Executor(self.api, cache, written=self.router.on_written),
            recorder=EventRecorder(self.api, clock=time.monotonic, now=utc_now),
            own_namespace=OperatorNamespace(self.api, self.config.namespace, None),
            bucket_user=BucketUser(self.api, self.config),
            now=self.clock,
        )
        self.cache = cache
        self.flights = SingleFlight(cache, queue=self._add, now=self.clock)
        turns = JobTurns(cache, self.config.job_limits, model=self._add, engine=self._add_engine)
        self.models = ModelReconciler(
            shared,
            self.images,
            plan,
            self.flights,
            turns,
        )
        self.engines = EngineReconciler(
            shared,
            EngineMetrics(CollectorRegistry()),
            EngineUses(cache, lambda namespace, name: self._add_engine(EngineKey(namespace, name))),
            turns,
        )
        self.watch()
        self.router.begin()
        return self

    def watch(self) -> None:
        """Have the watches show everything that there is."""
        for resource in KINDS.values():
            route(self.router, resource, self.kube.listing(resource))

    def refuse_jobs_of(self, owner: str, error: KubeError = _QUOTA) -> Self:
        """Have the API server refuse the Jobs of a model."""

        def refuse(obj: Json) -> None:
            if obj["kind"] == "Job" and obj["metadata"]["name"].startswith(f"{owner}-"):
                raise error

        self.kube.rewrite = refuse
        return self

    @override
    def pass_once(self) -> bool:
        self.watch()
        before = self.kube.writes
        while self.due:
            key = next(iter(self.due))
            del self.due[key]
            self.reconcile(key)
            if self.passes.total() > _ROUNDS * max(1, len(self.all("InferenceModel"))):
                raise AssertionError("no rest")
        return self.kube.writes != before

    def reconcile(self, key: ModelKey | EngineKey) -> None:
        """Work on one key; an error that may pass is retried at once, any other once something changes."""
        self.passes[key.name] += 1
        is_engine = isinstance(key, EngineKey)
        try:
            result = at_once(
                self.engines.reconcile(EngineKey(*key))
                if is_engine
                else self.models.reconcile(ModelKey(*key))
            )
        except KubeError as error:
            self.errors.append(error)
            if isinstance(error, Transient):
                self.due[key] = None
            return
        self.later_at.pop(key, None)
        if result.requeue:
            self.due[key] = None
        elif result.requeue_after is not None:
            self.later_at[key] = self.now + timedelta(seconds=result.requeue_after)

    def wait(self, **duration: float) -> Self:
        """Let time pass in which nothing happens: keys are worked on when they have asked for it."""
        end = self.now + timedelta(**duration)
        while self.later_at and (due := min(self.later_at.values())) <= end:
            self.now = max(self.now, due)
            keys = [key for key, moment in self.later_at.items() if moment <= self.now]
            for key in keys:
                del self.later_at[key]
                self.due[key] = None
            self.settle()
        self.now = end
        return self

    def _add(self, key: ModelKey) -> None:
        self.due[key] = None

    def _add_engine(self, key: EngineKey) -> None:
        self.due[key] = None

    def _add_lazily(self, key: ModelKey | EngineKey) -> None:
        self.due[key] = None

    # what users do

    def apply(self, *names: str, **spec: Any) -> Self:
        """Apply models that differ in nothing but their names."""
        for name in names:
            self.put(name, **spec)
        return self.settle()

    def put(self, name: str, **spec: Any) -> None:
        """Have a model, which the operator has not seen yet."""
        existing = self.find("InferenceModel", name)
        own = {"source": {"uri": SOURCE}, "rollout": {"canary": {"replicas": 0}}, **spec}
        desired = make_object("InferenceModel", name, self.namespace, spec=own)
        desired["metadata"]["annotations"] = {}
        if existing:
            desired["status"] = existing.get("status", {})
        self.kube.put(desired)

    def delete(self, name: str) -> Self:
        self.kube.remove("InferenceModel", self.namespace, name)
        return self.settle()

    def resync(self) -> Self:
        """Reconcile every model, as the operator does every ten minutes and when a wait is over."""
        self.router.begin()
        return self.settle()

    def after(self, **duration: float) -> Self:
        self.now += timedelta(**duration)
        return self.resync()

    # what there is

    def model(self, name: str) -> Json:
        return self.get("InferenceModel", name)

    def status(self, name: str) -> Json:
        status: Json = self.model(name).get("status", {})
        return status

    def ready(self, name: str) -> tuple[str, str]:
        """Return status and reason of Ready."""
        return conditions_of(self.model(name))["Ready"]

    def message(self, name: str) -> str:
        conditions = {item["type"]: item for item in self.status(name)["conditions"]}
        return str(conditions["Ready"]["message"])

    def leading(self) -> list[str]:
        """Return the models whose prepare Jobs have not ended."""
        return sorted(self.owner(job) for job in self.running_jobs() if _prepares(job))

    def prepare_jobs(self) -> list[Json]:
        return [job for job in self.all("Job") if _prepares(job)]

    def owner(self, job: Mapping[str, Any]) -> str:
        (owner,) = job["metadata"]["ownerReferences"]
        return str(owner["name"])

    def list_prepared(self) -> list[str]:
        """Return the models that have a prepared model."""
        return [
            entry["metadata"]["name"]
            for entry in self.all("InferenceModel")
            if entry.get("status", {}).get("prepared")
        ]

    def at(self) -> str:
        return timestamp(self.now)


def _prepares(job: Json) -> bool:
    return bool(job["metadata"]["labels"]["enginewright.dev/component"] == "prepare")
