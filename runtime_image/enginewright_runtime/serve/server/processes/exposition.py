"""Metrics of several server processes as one: sums of all series, whatever metrics there are. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from typing_extensions import override

# By family: type, documentation and samples, each a name, labels and a value. It is JSON.
Families = dict[str, Any]
_SUMMED = ("counter", "histogram")  # they outlive the process; gauges are of running ones
_Series = tuple[str, tuple[tuple[str, str], ...]]


def describe(families: Iterable[Metric]) -> Families:
    """Return the metrics of one process as JSON."""
    return {
        each.name: {
            "type": each.type,
            "about": each.documentation,
            "samples": [[one.name, one.labels, one.value] for one in each.samples],
        }
        for each in families
    }


def counted(families: Families) -> Families:
    """Return what remains of a process that has ended: all that only ever grows."""
    return {name: each for name, each in families.items() if each["type"] in _SUMMED}


def sum_families(reports: Iterable[Families]) -> Families:
    """Return the sums of the same series of several processes."""
    total: Families = {}
    for report in reports:
        for name, family in report.items():
            before = total.get(name)
            total[name] = family if before is None else _add(before, family)
    return total


def _add(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[_Series, float] = {}
    for name, labels, value in (*first["samples"], *second["samples"]):
        series = name, tuple(labels.items())
        values[series] = values.get(series, 0) + value
    samples = [[name, dict(labels), value] for (name, labels), value in values.items()]
    return {**first, "samples": samples}


def expose(families: Families) -> bytes:
    """Return metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Described(families))
    return generate_latest(registry)


class _Described(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    @override
    def collect(self) -> Iterable[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family["about"], family["type"])
            for sample, labels, value in family["samples"]:
                metric.add_sample(sample, labels, value)
            yield metric
