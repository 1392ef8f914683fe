"""Time in the model against the benchmark of the pod's class: a pod may be slow from its start. Pure.

The pod's own baseline cannot show that: throttled, on another MIG profile or beside other load, it is
slow and as it always was. Like is compared with like: the same shapes, in the model alone, run after
run; where the manifest has no such figure the answer is unknown.
"""

from collections.abc import Callable

from enginewright.contract.execution import Baseline
from enginewright.contract.manifest import Manifest
from enginewright.contract.reasons import Reason

from enginewright_runtime.serve.sidecar.checks import CheckResult
from enginewright_runtime.serve.sidecar.latency import Slowness, milliseconds
from enginewright_runtime.serve.sidecar.settings import SidecarSettings


def compared(
    manifest: Manifest,
    usual: Baseline | None,
    current: Callable[[str], float | None],
    settings: SidecarSettings,
) -> tuple[str, Slowness] | None:
    """Return the shapes that come closest to their benchmark, and how they stand; None: not comparable.

    The closest one counts: what was measured beside a neighbour's burst at the start is outdone by what
    is measured later, and a golden inference on an idle device, whose clocks are low, by the start.

    Args:
        manifest: of what is served.
        usual: what the server measured before it was ready.
        current: seconds in the model that a golden sample takes now.
        settings: the limits.
    """
    engine = manifest.engine
    if engine is None:
        return None
    figures = engine.latencies or ((engine.latency,) if engine.latency else ())
    rows: list[tuple[str, Slowness]] = []
    for figure in figures:
        shapes = figure.shapes or ""
        at_start = usual.p50 if usual and usual.shapes == shapes else None
        for seconds in (at_start, current(shapes)):
            if seconds is not None and figure.p50 > 0:
                slowness = Slowness(
                    seconds, figure.p50, settings.benchmark_ratio, settings.latency_floor
                )
                rows.append((shapes, slowness))
    return min(rows, key=lambda row: row[1].rank, default=None)


def outcome(manifest: Manifest, found: tuple[str, Slowness] | None) -> CheckResult:
    """Judge what `compared` has found."""
    if found is None:
        return CheckResult.unknown(_why_not(manifest))
    shapes, slowness = found
    usual = (
        f"{slowness.limit:g} times the benchmark of the class, {milliseconds(slowness.usual)}"
        f" for shapes {shapes!r}"
    )
    if slowness.exceeds:
        return CheckResult.failed(
            Reason.SLOWER_THAN_BENCHMARK, f"runs take more than {usual}, in the model alone"
        )
    return CheckResult.ok(f"runs take no more than {usual}")


def _why_not(manifest: Manifest) -> str:
    engine = manifest.engine
    if engine is None:
        return f"nothing was measured on the class: backend {manifest.recipe.backend} has no engine"
    if engine.latency is None and not engine.latencies:
        return "nothing was measured on the class: the engine was built without a device"
    return "no request of the same shapes was measured here yet"
