"""Turns the Prometheus Operator's objects into Prometheus' own configuration.

For a Prometheus without that operator, in tests and demo or a user's, that scrapes exactly what the
chart's objects select. The result equals the Prometheus Operator's (generatePodMonitorConfig in its
pkg/prometheus/promcfg.go). An unsupported field is an error rather than ignored, so that no incomplete
configuration goes unnoticed.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import yaml

API_VERSION: Final = "monitoring.coreos.com/v1"
_RENAMED: Final = {  # fields of an endpoint -> Prometheus' names
    "interval": "scrape_interval",
    "scrapeTimeout": "scrape_timeout",
    "path": "metrics_path",
}
_RELABELING: Final = {
    "sourceLabels": "source_labels",
    "separator": "separator",
    "targetLabel": "target_label",
    "regex": "regex",
    "modulus": "modulus",
    "replacement": "replacement",
    "action": "action",
}
_RULE: Final = frozenset({"alert", "expr", "for", "keep_firing_for", "labels", "annotations"})
_LABEL: Final = "__meta_kubernetes_pod_label_"
_LABEL_PRESENT: Final = "__meta_kubernetes_pod_labelpresent_"

Object = Mapping[str, Any]
Config = dict[str, Any]


class ConvertError(Exception):
    """An object cannot be converted; the message names the object, the field and the remedy."""


def scrape_configs(objects: Iterable[Object]) -> list[Config]:
    """Return Prometheus' `scrape_configs` for the PodMonitors among `objects`.

    Raises:
        ConvertError: A PodMonitor has an unsupported field, or lacks a required one.
    """
    return [
        _scrape_config(monitor, number)
        for monitor in objects
        if monitor.get("kind") == "PodMonitor"
        for number, _ in enumerate(_pod_monitor(monitor)["podMetricsEndpoints"])
    ]


def rule_file(objects: Iterable[Object]) -> Config:
    """Return one Prometheus rule file with the groups of the PrometheusRules among `objects`.

    Raises:
        ConvertError: A PrometheusRule has an unsupported field, or lacks a required one.
    """
    return {
        "groups": [
            group
            for rule in objects
            if rule.get("kind") == "PrometheusRule"
            for group in _groups(rule)
        ]
    }


def _pod_monitor(monitor: Object) -> Object:
    place = _name(monitor)
    spec = _fields(
        monitor["spec"], f"{place}: spec", needed={"selector", "podMetricsEndpoints"},
        optional={"namespaceSelector"},
    )  # fmt: skip
    selector = _fields(
        spec["selector"], f"{place}: spec.selector", optional={"matchLabels", "matchExpressions"}
    )
    for number, item in enumerate(selector.get("matchExpressions", ())):
        inside = f"{place}: spec.selector.matchExpressions[{number}]"
        _fields(item, inside, needed={"key", "operator", "values"})
        if item["operator"] != "In":
            raise ConvertError(f"{inside}.operator {item['operator']} is not supported")
    _fields(
        spec.get("namespaceSelector", {}), f"{place}: spec.namespaceSelector",
        optional={"any", "matchNames"},
    )  # fmt: skip
    return spec


def _scrape_config(monitor: Object, number: int) -> Config:
    spec = _pod_monitor(monitor)
    metadata = monitor["metadata"]
    place = f"{_name(monitor)}: spec.podMetricsEndpoints[{number}]"
    endpoint = _fields(
        spec["podMetricsEndpoints"][number], place, needed={"port"},
        optional={*_RENAMED, "scheme", "honorLabels", "relabelings", "metricRelabelings"},
    )  # fmt: skip
    config: Config = {
        "job_name": f"podMonitor/{metadata['namespace']}/{metadata['name']}/{number}",
        "honor_labels": endpoint.get("honorLabels", False),
        "kubernetes_sd_configs": [_discovery(spec, metadata["namespace"])],
    }
    config |= {new: endpoint[old] for old, new in _RENAMED.items() if old in endpoint}
    if "scheme" in endpoint:
        config["scheme"] = str(endpoint["scheme"]).lower()  # Prometheus' own spelling
    config["relabel_configs"] = [
        {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
        {
            "source_labels": ["__meta_kubernetes_pod_phase"],
            "regex": "(Failed|Succeeded)",
            "action": "drop",
        },
        *_select_pods(spec["selector"]),
        {
            "action": "keep",
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": endpoint["port"],
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *_relabelings(endpoint.get("relabelings", ()), f"{place}.relabelings"),
    ]
    metrics = _relabelings(endpoint.get("metricRelabelings", ()), f"{place}.metricRelabelings")
    return config | ({"metric_relabel_configs": metrics} if metrics else {})


def _discovery(spec: Object, home: str) -> Config:
    selector = spec.get("namespaceSelector", {})
    if selector.get("any"):
        return {"role": "pod"}
    return {"role": "pod", "namespaces": {"names": list(selector.get("matchNames") or [home])}}


def _select_pods(selector: Object) -> list[Config]:
    labels = selector.get("matchLabels", {})
    terms = [(name, labels[name]) for name in sorted(labels)]
    terms += [
        (item["key"], "|".join(item["values"])) for item in selector.get("matchExpressions", ())
    ]
    return [
        {
            "action": "keep",
            "source_labels": [_LABEL + _sanitize(name), _LABEL_PRESENT + _sanitize(name)],
            "regex": f"({values});true",
        }
        for name, values in terms
    ]


def _sanitize(label: str) -> str:
    """Return a Kubernetes label's name as Prometheus' service discovery writes it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _relabelings(relabelings: Iterable[Object], place: str) -> list[Config]:
    return [
        {
            _RELABELING[name]: value
            for name, value in _fields(
                relabeling, f"{place}[{number}]", optional=set(_RELABELING)
            ).items()
        }
        for number, relabeling in enumerate(relabelings)
    ]


def _groups(rule: Object) -> list[Config]:
    place = _name(rule)
    groups = _fields(rule["spec"], f"{place}: spec", needed={"groups"})["groups"]
    for number, group in enumerate(groups):
        inside = f"{place}: spec.groups[{number}]"
        _fields(group, inside, needed={"name", "rules"}, optional={"interval"})
        for index, item in enumerate(group["rules"]):
            _fields(item, f"{inside}.rules[{index}]", needed={"alert", "expr"}, optional=_RULE)
    return list(groups)


def _name(thing: Object) -> str:
    """Return an object's name for messages. Raises ConvertError for one of another API."""
    kind, metadata = thing.get("kind"), thing.get("metadata", {})
    name = f"{kind} {metadata.get('name', 'without a name')}"
    if thing.get("apiVersion") != API_VERSION:
        raise ConvertError(f"{name}: apiVersion {thing.get('apiVersion')} is not {API_VERSION}")
    if not isinstance(thing.get("spec"), Mapping):
        raise ConvertError(f"{name}: spec is missing or not an object")
    if not metadata.get("namespace"):
        raise ConvertError(f"{name}: metadata.namespace is missing: render it with a namespace")
    return name


def _fields(
    value: object,
    place: str,
    *,
    needed: AbstractSet[str] = frozenset(),
    optional: AbstractSet[str] = frozenset(),
) -> Object:
    """Return `value` if it is an object with all `needed` and besides only `optional` fields."""
    if not isinstance(value, Mapping):
        raise ConvertError(f"{place} is not an object")
    if unknown := sorted(value.keys() - needed - optional):
        raise ConvertError(
            f"{place}.{unknown[0]} is not supported: remove it, or add it to hack/monitoring/convert.py"
        )
    if missing := sorted(needed - value.keys()):
        raise ConvertError(f"{place}.{missing[0]} is missing: add it")
    return value


def main() -> int:
    """Convert objects on stdin, as printed by `helm template`."""
    parser = argparse.ArgumentParser(prog="hack/monitoring/convert.py", description=__doc__)
    parser.add_argument(
        "what",
        choices=("scrape-configs", "rules"),
        help="from PodMonitors, or from PrometheusRules",
    )
    what = parser.parse_args().what
    try:
        objects = [item for item in yaml.safe_load_all(sys.stdin) if isinstance(item, Mapping)]
        converted: Config = (
            rule_file(objects) if what == "rules" else {"scrape_configs": scrape_configs(objects)}
        )
    except yaml.YAMLError as error:
        print(f"convert: stdin is not valid YAML: {error}", file=sys.stderr)
        return 1
    except ConvertError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 1
    yaml.safe_dump(converted, sys.stdout, sort_keys=False, width=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
