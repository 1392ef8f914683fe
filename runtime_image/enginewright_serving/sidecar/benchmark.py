"""Compares time in the model with the benchmark of the pod's class, for the same shapes. Pure.

A pod that is slow from its start, for example throttled, on another MIG profile or beside other load, is not
slow against its own baseline.
"""

from collections.abc import Callable
from typing import Final

from enginewright_contract.execution import Baseline
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason

from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.latency import FLOOR, Slowness, milliseconds

_RATIO: Final = 2.0  # of the class's benchmark, measured without other load


def compare(
    manifest: Manifest,
    usual: Baseline | None,
    current: Callable[[str], float | None],
) -> tuple[str, Slowness] | None:
    """Return the shapes that come closest to their benchmark, and the comparison, or None without a benchmark.

    The closest one counts, since both measurements can be too slow: `usual`, which the server measured at
    startup, by other load, and `current`, the seconds in the model that a golden sample takes now, by the low
    clocks of an idle device.
    """
    engine = manifest.engine
    if engine is None:
        return None
    figures = engine.latencies or ((engine.latency,) if engine.latency else ())
    rows: list[tuple[str, Slowness]] = []
    for figure in figures:
        shapes = figure.shapes or ""
        at_start = usual.p50 if usual and usual.shapes == shapes else None
        rows += [
            (shapes, Slowness(seconds, figure.p50, _RATIO, FLOOR))
            for seconds in (at_start, current(shapes))
            if seconds is not None and figure.p50 > 0
        ]
    return min(rows, key=lambda row: row[1].rank, default=None)


def outcome(manifest: Manifest, comparison: tuple[str, Slowness] | None) -> CheckResult:
    """Return the check's result for a result of `compared`."""
    if comparison is None:
        return CheckResult.as_unknown(_why_not(manifest))
    shapes, slowness = comparison
    usual = (
        f"{slowness.limit:g} times the benchmark of the class, {milliseconds(slowness.usual)}"
        f" for shapes {shapes!r}"
    )
    if slowness.exceeds:
        return CheckResult.as_failed(
            Reason.SLOWER_THAN_BENCHMARK, f"runs take more than {usual}, in the model only"
        )
    return CheckResult.as_ok(f"runs take no more than {usual}")


def _why_not(manifest: Manifest) -> str:
    engine = manifest.engine
    if engine is None:
        return f"the class has no benchmark: backend {manifest.recipe.backend} has no engine"
    if engine.latency is None and not engine.latencies:
        return "the class has no benchmark: the engine was built without a device"
    return "no run of the same shapes has been measured in this pod yet"
