"""Metrics and alerts, read from registries like those of the processes, and from the chart."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from enginewright.controller.cache import ObjectCache
from enginewright.controller.collection_metrics import CollectionMetrics, StoreCollector
from enginewright.controller.fleet import Fleet, FleetCollector
from enginewright.controller.loop import LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector
from enginewright.controller.verdicts import poll_counter
from enginewright.kube.metrics import RestMetrics
from enginewright.node_cache.metrics import CacheMetrics
from enginewright.plan.types import FleetConfig
from enginewright_runtime.core.nvml_use import DeviceUse
from enginewright_serving.server.observe.device_use import DeviceMetrics
from enginewright_serving.server.observe.metrics import Metrics as ServerMetrics
from enginewright_serving.sidecar.metrics import FAMILIES
from prometheus_client import CollectorRegistry

from hack.tables.markdown import code, table

ALERTS: Final = (
    Path(__file__).resolve().parents[2]
    / "charts/enginewright/files/monitoring/enginewright.rules.yaml"
)


def operator_metrics() -> str:
    """Return the operator's metrics, read from a registry like its own."""
    registry = CollectorRegistry()
    LoopMetrics(registry)
    RestMetrics(registry)
    RestMetrics(registry, "enginewright_lease")
    EngineMetrics(registry)
    ModelCollector(ObjectCache(), registry, leads=lambda: True)
    fleet = Fleet(ObjectCache(), {}, FleetConfig(), queue=_nothing, stopped=_nothing)
    FleetCollector(fleet, registry, leads=lambda: True)
    StoreCollector(ObjectCache(), CollectionMetrics(registry), registry, leads=lambda: True)
    poll_counter(registry)
    return _read(registry)


def _nothing(_: object) -> None:
    """Stand for what a process does about the fleet."""


def node_cache_metrics() -> str:
    """Return the metrics of the cache of a node."""
    registry = CollectorRegistry()
    CacheMetrics(registry).show(*(lambda: 0.0,) * 3)
    return _read(registry)


def server_metrics() -> str:
    """Return the server's metrics."""
    device = DeviceMetrics("", "", lambda: DeviceUse(0, 0, 0.0))
    server = ServerMetrics("", "")
    server.has_steps()
    return _metrics(_expose([server, device]), common={"model", "revision"})


def sidecar_metrics() -> str:
    """Return the sidecar's metrics."""
    return _metrics((family.name, family.kind, family.labels, family.help) for family in FAMILIES)


def _read(registry: CollectorRegistry) -> str:
    return _metrics(_expose(registry._collector_to_names))  # noqa: SLF001 - label names are not public


def _expose(collectors: Iterable[Any]) -> Iterator[tuple[str, str, Sequence[str], str]]:
    for collector in collectors:
        for family in collector.collect():
            owner = collector if hasattr(collector, "_labelnames") else family
            labels = [item for item in getattr(owner, "_labelnames", ()) if item != "le"]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, family.type, labels, family.documentation


def _metrics(
    families: Iterable[tuple[str, str, Sequence[str], str]], common: Iterable[str] = ()
) -> str:
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                code(name),
                kind,
                ", ".join(code(label) for label in labels if label not in common),
                about,
            )
            for name, kind, labels, about in families
        ),
    )


def alerts() -> str:
    """Return every alert, with its severity, its delay and the metrics that it reads."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rows = (
        (
            f"[{rule['alert']}](../monitoring.md#{rule['alert'].lower()})",
            " or ".join(re.findall("warning|critical", rule["labels"]["severity"])),
            rule.get("for", "at once"),
            ", ".join(
                map(code, sorted(set(re.findall(r"\b(?:enginewright_\w+|up)\b", rule["expr"]))))
            ),
        )
        for group in groups
        for rule in group["rules"]
    )
    return table(("alert", "severity", "for", "reads"), rows)
