"""What all server processes of a pod have counted together, those that have ended included. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from enginewright.contract.execution import ComputeBucket
from enginewright.contract.measurements import SERIES, WINDOWS, LatencySeries


def sum_buckets(reports: Iterable[Iterable[ComputeBucket]]) -> tuple[ComputeBucket, ...]:
    """Return the counts and times by size; the best warm-up run of a size is kept."""
    found: dict[int, ComputeBucket] = {}
    for each in (bucket for report in reports for bucket in report):
        before = found.get(each.elements)
        if before is None:
            found[each.elements] = each
            continue
        warm = [before.warmup_seconds, each.warmup_seconds]
        found[each.elements] = ComputeBucket(
            elements=each.elements,
            warmup_seconds=min((one for one in warm if one is not None), default=None),
            count=before.count + each.count,
            seconds=before.seconds + each.seconds,
            untimed=before.untimed + each.untimed,
        )
    return tuple(found[size] for size in sorted(found))


def merge_latencies(reports: Iterable[Iterable[LatencySeries]]) -> tuple[LatencySeries, ...]:
    """Return the series by size class, their windows in order of time; of too many, those counted most."""
    by_name: dict[str, list[LatencySeries]] = {}
    for each in (series for report in reports for series in report):
        by_name.setdefault(each.name, []).append(each)
    merged = [
        LatencySeries(
            source=parts[0].source,
            name=name,
            count=sum(each.count for each in parts),
            windows=tuple(sorted(window for each in parts for window in each.windows)[-WINDOWS:]),
        )
        for name, parts in by_name.items()
    ]
    kept = sorted(merged, key=lambda each: each.count, reverse=True)[:SERIES]
    return tuple(sorted(kept, key=lambda each: int(each.name)))


def sum_statistics(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return Triton's statistics of one model (`statistics`), summed; None: there are none."""
    if not reports:
        return None
    first = reports[0]
    sizes = sorted({each["batch_size"] for report in reports for each in report["batch_stats"]})
    batches = {
        size: [
            each
            for report in reports
            for each in report["batch_stats"]
            if each["batch_size"] == size
        ]
        for size in sizes
    }
    return {
        **first,
        "last_inference": max(each["last_inference"] for each in reports),
        "inference_count": sum(each["inference_count"] for each in reports),
        "execution_count": sum(each["execution_count"] for each in reports),
        "inference_stats": _sum_durations([each["inference_stats"] for each in reports]),
        "batch_stats": [
            {"batch_size": size, **_sum_durations(parts)} for size, parts in batches.items()
        ],
    }


def _sum_durations(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of counts and nanoseconds by name."""
    names = [name for name in reports[0] if name != "batch_size"]
    return {
        name: {part: sum(each[name][part] for each in reports) for part in ("count", "ns")}
        for name in names
    }
