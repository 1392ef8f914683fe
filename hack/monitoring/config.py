"""Configuration of a Prometheus and an Alertmanager that react within seconds, for tests and demo.

Scrape targets and alerts come from the chart's objects; only addresses and intervals are ours.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml

from hack.monitoring.convert import rule_file, scrape_configs

RELEASE: Final = "enginewright"
OPERATOR_NAMESPACE: Final = "enginewright-system"
SCRAPE_SECONDS: Final = 2
_DISCOVERY: Final = "kubernetes_sd_configs"
_REPOSITORY: Final = Path(__file__).resolve().parents[2]

Config = dict[str, Any]


class RenderError(Exception):
    """Helm could not render the chart; the message contains its output."""


def chart_objects() -> list[Config]:
    """Return the chart's monitoring objects, rendered as hack/install installs the rest.

    Raises:
        RenderError: Helm is missing or failed.
    """
    local = [f"{_REPOSITORY}/hack/cluster/cluster", "helm"]
    helm = ["helm"] if os.environ.get("CONTEXT") else local
    switches = [
        f"--set=monitoring.{item}.enabled=true"
        for item in ("podMonitor", "prometheusRule", "dashboards")
    ]
    # required by the chart, but not used by its monitoring objects
    images = ["--set=images.operator=unused", "--set=images.runtime.cpu=unused"]
    command = [
        *helm, "template", RELEASE, f"{_REPOSITORY}/charts/enginewright",
        "--namespace", OPERATOR_NAMESPACE, *switches, *images,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    except OSError as error:
        raise RenderError(f"{command[0]} cannot be run: {error.strerror}; install Helm") from None
    if done.returncode != 0:
        raise RenderError(f"`helm template` failed:\n{done.stderr.strip()}")
    return [
        item
        for item in yaml.safe_load_all(done.stdout)
        if item and item["kind"] in {"PodMonitor", "PrometheusRule", "ConfigMap"}
    ]


def prometheus_config(
    scrapes: Sequence[Config], *, alertmanager: str, rules: str, scrape_seconds: float
) -> Config:
    """Return prometheus.yml; `alertmanager` is host:port, `rules` the path of the rule file."""
    interval = _interval(scrape_seconds)
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "rule_files": [rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": list(scrapes),
    }


def alertmanager_config(webhook: str) -> Config:
    """Return alertmanager.yml, which sends every group of alerts to the URL `webhook` after 1 s."""
    return {
        "route": {
            "receiver": "webhook",
            "group_by": ["alertname", "namespace", "model"],
            "group_wait": "1s",
            "group_interval": "2s",
            "repeat_interval": "1h",
        },
        "receivers": [
            {"name": "webhook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
        ],
    }


def through_discovery(scrapes: Sequence[Config], url: str, seconds: float) -> list[Config]:
    """Return scrape configurations that get their pods from hack/monitoring/discovery.py at `url`.

    Debian builds Prometheus without Kubernetes' service discovery; nothing else is changed.
    """
    return [
        {name: value for name, value in scrape.items() if name != _DISCOVERY}
        | {
            "http_sd_configs": [
                {"url": _pods_of(url, discovery), "refresh_interval": _interval(seconds)}
                for discovery in scrape[_DISCOVERY]
            ]
        }
        for scrape in scrapes
    ]


def _pods_of(url: str, discovery: Config) -> str:
    names = discovery.get("namespaces", {}).get("names", ())
    return f"{url}?{urlencode([('namespace', name) for name in names])}".removesuffix("?")


def _interval(seconds: float) -> str:
    return f"{int(seconds * 1000)}ms"


def files(
    objects: Sequence[Config], *, alertmanager: str, webhook: str, discovery: str, folder: str
) -> dict[str, str]:
    """Return the text of all configuration files by name, for a Prometheus that reads `folder`.

    `alertmanager` is host:port; `webhook` and `discovery` are URLs.
    """
    documents = {
        "prometheus.yml": prometheus_config(
            through_discovery(scrape_configs(objects), discovery, SCRAPE_SECONDS),
            alertmanager=alertmanager,
            rules=f"{folder}/rules.yml",
            scrape_seconds=SCRAPE_SECONDS,
        ),
        "rules.yml": rule_file(objects),
        "alertmanager.yml": alertmanager_config(webhook),
    }
    return {name: yaml.safe_dump(body, sort_keys=False) for name, body in documents.items()}
