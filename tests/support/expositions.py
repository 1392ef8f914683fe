"""What pods really expose: the sidecar's, the server's and the operator's own code writes it.

So that alerts and dashboards are tested against names and labels that exist.
"""

import time

from enginewright.controller.cache import ObjectCache
from enginewright.controller.collection_metrics import CollectionMetrics, StoreCollector
from enginewright.controller.fleet import Fleet, FleetCollector
from enginewright.controller.loop import LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector, RolloutMetrics
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import INFERENCE_MODELS, JOBS
from enginewright.manifests.collect_job import COLLECT
from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.labels import COMPONENT
from enginewright.plan.engines.engine import Ended
from enginewright.plan.types import FleetConfig
from enginewright_contract.collection import Collected
from enginewright_contract.execution import (
    Baseline,
    ComputeBucket,
    Driver,
    Execution,
    PlacementFacts,
)
from enginewright_contract.manifest import Manifest, NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Promise, ServeTask
from enginewright_runtime.core.nvml_use import DeviceUse
from enginewright_serving.server.observe.device_use import DeviceMetrics
from enginewright_serving.server.observe.metrics import Metrics
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.metrics import expose
from enginewright_serving.sidecar.pod_state import OF_EXECUTION, PodState
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.fake_kube import FakeKube
from tests.support.manifests import CPU_RECIPE, manifest
from tests.support.plan_objects import make_object

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
NODES = ("conv (Conv)", "act (Relu)", "pool (MaxPool)", "head (Gemm)")
MODEL, REVISION = "rank", "r1"


class ServingPod:
    """A sidecar that watches a server; every scrape sees a little more traffic."""

    def __init__(self) -> None:
        self.fallen_back = False
        self.runs_fail = False
        task = ServeTask(
            model=MODEL,
            revision=REVISION,
            prepared_key="a" * 64,
            backend="cuda",
            promise=Promise(policy="Allow"),
        )
        self._findings = PodState(task, _manifest(), 1, time.monotonic)
        self._server = Metrics(MODEL, REVISION)
        self._server.depth = lambda: 2
        self._server.add(DeviceMetrics(MODEL, REVISION, lambda: DeviceUse(6 << 30, 24 << 30, 0.7)))
        for index in range(40):  # enough for a baseline and for measurements to compare
            self._findings.golden(
                ProbeResult("s0", 0.010, 0.0, compute=0.010, error=1e-6, compared=1), 1.0
            )
            buckets = (ComputeBucket(elements=64, count=20 * index, seconds=0.2 * index),)
            self._findings.latency.live.add(buckets, time.monotonic())

    def expose(self) -> bytes:
        server = self._server
        server.count_answer(503, time.monotonic(), 0, 64)
        server.queue.observe(0.002)
        server.compute.observe(0.010)
        server.runs.add(4, 0.010, succeeded=True)
        for _ in range(20):
            server.count_answer(200, time.monotonic() - 0.013, 1000, 4000)
        server.out_of_profile += 1
        pod_state = self._findings
        pod_state.server(live=True, ready=True)
        if self.runs_fail:
            pod_state.server(live=True, ready=False, reason=Reason.RUNS_FAIL, why="all runs fail")
        pod_state.execution(self._execution(), OF_EXECUTION)
        pod_state.golden(ProbeResult("s0", 0.011, 0.0, compute=0.011, error=1e-6, compared=1), 1.0)
        pod_state.responses({200: 1.0})
        return expose(pod_state, server.expose())

    def _execution(self) -> Execution:
        lost = self.fallen_back
        return Execution(
            model=MODEL,
            revision=REVISION,
            backend="cuda",
            provider=GPU,
            providers=(CPU,) if lost else (GPU, CPU),
            session=1,
            placement=PlacementFacts(
                nodes={CPU if lost else GPU: len(NODES)}, elsewhere=NODES if lost else ()
            ),
            provider_reason=Reason.PROVIDER_MISSING if lost else None,
            provider_message="libcublasLt.so.13 is not there" if lost else "",
            driver=Driver(needed=True, present=True, version="580.1"),
            model_digest="d" * 64,
            prepared_key="a" * 64,
            opset=17,
            ort_distributions=("onnxruntime-gpu",),
            ort_version="1.31.1",
            backend_version="13.0",
            runtime_version="0.1.0",
            usual=Baseline(p50=0.010, p90=0.011, p99=0.012, samples=200, shapes="opt"),
        )


def _manifest() -> Manifest:
    return manifest(
        recipe=CPU_RECIPE.model_copy(update={"backend": "cuda"}),
        nodes=len(NODES),
        node_costs=tuple(NodeCost(label=label, count=1, share=0.25) for label in NODES),
    )


COLLECTION = CollectionOutcome(
    collected=Collected(
        artifacts=9,
        bytes=9 << 30,
        needed_artifacts=5,
        needed_bytes=5 << 30,
        removed_artifacts=2,
        removed_bytes=2 << 30,
        bytes_after=7 << 30,
        leftovers=1,
        leftover_bytes=1 << 20,
        reports=3,
        caches=1,
        capacity_bytes=20 << 30,
        free_bytes=12 << 30,
    ),
    limit_bytes=10 << 30,
)


def _collect_stores() -> ObjectCache:
    """Return a cache with the Jobs of a store that was collected, and of one that could not be."""
    cache, kube = ObjectCache(), FakeKube()
    outcomes = {"shop": COLLECTION, "search": CollectionOutcome(failure="no claim")}
    for namespace, outcome in outcomes.items():
        job = make_object("Job", "collect-1", namespace, labels={COMPONENT: COLLECT})
        job["metadata"]["annotations"] = outcome.annotations()
        cache.observe(JOBS, kube.put(job))
    return cache


class OperatorPod:
    """The operator's registry; every scrape sees a little more work."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        cache = ObjectCache()
        ModelCollector(cache, registry, leads=lambda: True)
        conditions = [
            {"type": "Ready", "status": "True"},
            {"type": "Stalled", "status": "False"},
            {"type": "FallbackActive", "status": "True"},
        ]
        refused = [{"type": "Ready", "status": "False", "reason": "InvalidModel"}]
        kube = FakeKube()
        for name, model_conditions in ((MODEL, conditions), ("refused", refused)):
            model = make_object(
                "InferenceModel", name, "shop", status={"conditions": model_conditions}
            )
            cache.observe(INFERENCE_MODELS, kube.put(model))
        fleet = Fleet(
            ObjectCache(), {}, FleetConfig(), queue=lambda _key: None, stopped=lambda _why: None
        )
        FleetCollector(fleet, registry, leads=lambda: True)
        RolloutMetrics(registry).count(Reason.SLOWER_THAN_STABLE)
        self._loop, self._rest = LoopMetrics(registry), RestMetrics(registry)
        self._engines = EngineMetrics(registry)
        self._collections = CollectionMetrics(registry)
        StoreCollector(_collect_stores(), self._collections, registry, leads=lambda: True)

    def expose(self) -> bytes:
        controller = "inferencemodel"
        self._loop.total.labels(controller, "success").inc()
        self._loop.errors.labels(controller).inc()
        self._loop.time.labels(controller).observe(0.02)
        self._loop.queues.depth.labels(controller).set(1)
        self._rest.requests.labels("PATCH", "200").inc()
        self._engines.count(Ended(Reason.BUILD_FAILED))
        self._engines.count(Ended("", build_seconds=12))
        self._engines.count(Ended("", cached=True))
        self._collections.count(COLLECTION)
        return generate_latest(self._registry)
