"""Reads an InferenceEngine, a class and the known runtime images from the cluster."""

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import ConditionType, find_condition
from enginewright.api.inference_engine import InferenceEngine
from enginewright.controller.images import CONFIG_MAP
from enginewright.kube.client import KubeClient
from enginewright.kube.errors import Forbidden
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    INFERENCE_ENGINES,
)
from enginewright_contract.images import ImageFacts
from enginewright_contract.manifest import Latency

from enginewright_cli import cluster, images
from enginewright_cli.inspect.files import Progress
from enginewright_cli.inspect.fit import EngineTarget
from enginewright_cli.inspect.result import EngineInspection


def inspect(name: str, namespace: str | None, progress: Progress) -> EngineInspection:
    """Inspect an InferenceEngine; `progress` is called with what is being read. Raises CommandError."""
    where = namespace or cluster.current_namespace()
    progress(f"reading InferenceEngine {where}/{name}")

    async def read(client: KubeClient) -> EngineInspection:
        _, engine = await cluster.read_object(
            client, INFERENCE_ENGINES, InferenceEngine, where, name
        )
        return _engine(engine, f"InferenceEngine {where}/{name}")

    return cluster.query(read)


def target(name: str, progress: Progress) -> EngineTarget:
    """Return an AcceleratorClass as the target of an engine; raises like `inspect`."""
    progress(f"reading AcceleratorClass {name}")

    async def read(client: KubeClient) -> EngineTarget:
        _, accelerator = await cluster.read_object(
            client, ACCELERATOR_CLASSES, AcceleratorClass, None, name
        )
        spec = accelerator.spec
        facts, unknown = await _images(client)
        return EngineTarget(
            name=f"class {name}",
            compute_capability=spec.compute_capability,
            backends=tuple(str(backend) for backend in spec.backends),
            images=facts,
            unknown=unknown,
        )

    return cluster.query(read)


async def _images(client: KubeClient) -> tuple[tuple[ImageFacts, ...], tuple[str, ...]]:
    """Return the facts of the runtime images, and why they are unknown where access is denied."""
    try:
        return tuple((await images.list_images(client)).values()), ()
    except Forbidden:
        return (), (f"versions: you may not read ConfigMap {CONFIG_MAP} in all namespaces",)


def _engine(obj: InferenceEngine, source: str) -> EngineInspection:
    spec, facts = obj.spec, obj.status.engine
    recipe = spec.recipe
    problems: tuple[str, ...] = ()
    if facts is None:
        problems = (f"the engine is not built: {_why_not(obj)}",)
    p99 = facts.p99_microseconds if facts else None
    share = facts.billionths_elsewhere if facts else None
    capability = (recipe.compute_capability,) if recipe.compute_capability else ()
    return EngineInspection(
        source=source,
        kind="resource",
        key=spec.key,
        prepared_key=spec.prepared_key,
        backend=str(spec.backend),
        backend_version=recipe.backend_version,
        ort_version=recipe.ort_version,
        cuda_major=recipe.cuda_major,
        accelerator_class=spec.class_name,
        compute_capabilities=(facts.compute_capabilities if facts else ()) or capability,
        nodes_total=facts.nodes_total if facts else None,
        nodes_accelerated=facts.nodes_accelerated if facts else None,
        compute_share_elsewhere=None if share is None else share / 1e9,
        elsewhere=facts.elsewhere if facts else (),
        size_bytes=facts.size_bytes if facts else None,
        sha256=facts.sha256 if facts else None,
        workspace_bytes=(facts.workspace_bytes if facts else None) or recipe.workspace_bytes,
        optimization_level=recipe.optimization_level,
        build_seconds=facts.build_milliseconds / 1000 if facts else None,
        # the status contains only the 99th percentile of a benchmark
        latency=None if p99 is None else Latency(p50=0, p90=0, p99=p99 / 1e6, samples=0),
        unjudged=facts.parity.unjudged if facts and facts.parity else "",
        state=_ready(obj),
        problems=problems,
        notes=(
            "the engine's files are in the store: pods verify their digests when they fetch them",
        )
        if facts
        else (),
    )


def _why_not(obj: InferenceEngine) -> str:
    status = obj.status
    if failure := status.failure:
        return f"{failure.reason}: {failure.sentence}"
    if status.stage:
        percent = "" if status.percent is None else f", {status.percent}%"
        return f"stage {status.stage}{percent}"
    return _ready(obj) or "not reconciled by the operator yet"


def _ready(obj: InferenceEngine) -> str:
    ready = find_condition(obj.status.conditions, ConditionType.READY)
    if ready is None:
        return ""
    text = f"{ready.type}={ready.status}"
    return f"{text}, {ready.reason}: {ready.message}" if ready.message else text
