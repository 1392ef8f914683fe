"""Measures the prepared model on other backends than the engine's, so that the fastest can be chosen.

Backends run one after the other in separate processes, so that each has the whole device.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import BackendLatency, Manifest
from enginewright_contract.task import Promise

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.engine.handoff import PREPARED_FOLDER
from enginewright_runtime.engine.verify import make_run
from enginewright_runtime.proof.latency.comparing import measure
from enginewright_runtime.proof.promise import judge

_log: Final = logging.getLogger(__name__)
# of all backends: the engine is published after that, within `spec.build.timeout`
BUDGET_SECONDS: Final = 300.0
_WHOLE: Final = Promise()  # which forbids nodes elsewhere


def compare_backends(
    backends: Sequence[str], work: Path, manifest: Manifest, seconds: float = BUDGET_SECONDS
) -> tuple[BackendLatency, ...]:
    """Return the latency on each backend; backends whose turn comes after `seconds` are excluded."""
    end = time.monotonic() + seconds
    late = f"not measured: the comparison took {seconds:.0f} s before its turn"
    return tuple(
        measure_backend(backend, work, manifest, left)
        if (left := end - time.monotonic()) > 0
        else _exclude(backend, late)
        for backend in backends
    )


def measure_backend(
    backend: str, work: Path, manifest: Manifest, seconds: float = BUDGET_SECONDS
) -> BackendLatency:
    """Return the latency of the prepared model on a backend with the usual sizes, or why it is excluded."""
    _log.info("comparing with the prepared model on backend %s", backend)
    end = time.monotonic() + seconds
    try:
        run = make_run(work / PREPARED_FOLDER / manifest.model, backend, work, manifest)
        outcome = run.run(seconds)
        if outcome.refusal:
            return _exclude(backend, f"the prepared model {outcome.refusal}")
        if outcome.failed:
            return _exclude(backend, outcome.failed.description)
        result = measure(
            work / PREPARED_FOLDER / manifest.model,
            backend,
            work / PREPARED_FOLDER / manifest.golden_inputs,
            usual_only=True,
            total=max(0.001, end - time.monotonic()),
        )
    except StageFailure as failure:
        return _exclude(backend, f"{failure.reason}: {failure.cause}")
    placement = judge(result.placement, result.provider, manifest, _WHOLE)
    if placement.broken:
        return _exclude(backend, placement.message)
    return BackendLatency(backend=backend, latency=result.usual)


def _exclude(backend: str, why: str) -> BackendLatency:
    _log.warning("backend %s is excluded: %s", backend, why)
    return BackendLatency(backend=backend, excluded=why)
