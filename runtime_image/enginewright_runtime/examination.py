"""Loads a prepared model as a serving pod would and tells where its nodes run, and how fast.

For machines without a cluster: in pods the server and the sidecar find out the same, live.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.execution import PlacementFacts
from enginewright.contract.manifest import MANIFEST_NAME, Latency, Manifest
from enginewright.contract.task import Promise
from enginewright.contract.verdict import FallbackVerdict

from enginewright_runtime import backends
from enginewright_runtime.isolation import Limits, run_isolated
from enginewright_runtime.promise import judge
from enginewright_runtime.stages.engine.device_run import benchmark

_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Examined:
    """What is known of a model on a backend."""

    placement: FallbackVerdict
    elsewhere: tuple[str, ...]  # labels of all nodes on another provider
    latency: Latency | None


def examine(artifact: Path, backend: str, promise: Promise) -> Examined:
    """Load, run and time a prepared model.

    Raises:
        StageFailure: BackendCrashed, OutOfMemory or Timeout.
        SessionError: the backend refuses the model, which the stages would have told.
    """
    answer = run_isolated(
        f"{__name__}:load_and_time",
        f"running the prepared model on backend {backend}",
        limits=Limits(seconds=_SECONDS),
        artifact=str(artifact),
        backend=backend,
    )
    manifest = _manifest(artifact)
    facts = PlacementFacts.model_validate(answer["placement"])
    latency = Latency.model_validate(answer["latency"]) if answer["latency"] else None
    placement = judge(facts, answer["provider"], manifest, promise)
    return Examined(placement, facts.elsewhere, latency)


def load_and_time(artifact: str, backend: str) -> dict[str, Any]:
    """Load and time. Called in a child process.

    Returns:
        `provider`, `placement` as PlacementFacts, and `latency` as Latency.
    """
    folder = Path(artifact)
    manifest = _manifest(folder)
    model = folder / manifest.model
    loaded = backends.create(backend, model)
    placement = loaded.placement
    facts = PlacementFacts(
        nodes=dict(placement.nodes),
        elsewhere=placement.elsewhere,
        context_nodes=placement.context_nodes,
    )
    latency = benchmark(
        backend,
        str(model),
        str(folder / manifest.golden_inputs),
        str(folder / manifest.golden_outputs),
    )
    return {
        "provider": placement.provider,
        "placement": facts.model_dump(mode="json"),
        "latency": latency,
    }


def _manifest(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
