"""Debian's Prometheus, Alertmanager and promtool as processes, and what they scrape."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.monitoring import config
from hack.monitoring.dashboards import FOLDER
from hack.monitoring.tools import program
from tests.e2e.harness import eventually, http_json
from tests.support.expositions import OperatorPod, ServingPod
from tests.support.web import WebServer

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "charts/enginewright/files/monitoring/enginewright.rules.yaml"
TARGET = {"namespace": "shop", "pod": "rank-1"}  # labels that the scrape adds
_TEXT = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class BoardQuery:
    """One query of a dashboard, and where it stands."""

    place: str
    expr: str

    def filled(self, **variables: str) -> str:
        """Return the query as Grafana sends it."""
        text = self.expr.replace("$__rate_interval", variables.pop("rate_interval"))
        for name, value in variables.items():
            text = text.replace(f"${name}", value)
        assert "$" not in text, f"a variable of {self.place} has no value: {text}"
        return text


def board_queries(name: str) -> list[BoardQuery]:
    """Return every query of a dashboard: of its panels, variables and annotations."""
    board = json.loads((FOLDER / name).read_text())
    found = [
        BoardQuery(f"panel `{panel['title']}` {target['refId']}", target["expr"])
        for row in board["panels"]
        for panel in (row, *row.get("panels", ()))
        for target in panel.get("targets", ())
    ]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]  # ours has this form
            found.append(
                BoardQuery(f"variable {variable['name']}", f"count by ({label}) ({series})")
            )
    return found + [
        BoardQuery(f"annotation {each['name']}", each["expr"])
        for each in board["annotations"]["list"]
        if "expr" in each
    ]


class Pods:
    """Serves what a serving pod and the operator expose."""

    def __init__(self, web: WebServer) -> None:
        self.serving, self.operator = ServingPod(), OperatorPod()
        self._address = web.url.removeprefix("http://")
        web.routes["/sidecar"] = lambda request: request.send(
            self.serving.expose(), Content_Type=_TEXT
        )
        web.routes["/operator"] = lambda request: request.send(
            self.operator.expose(), Content_Type=_TEXT
        )

    def scrape_configs(self) -> list[dict[str, Any]]:
        """Return how Prometheus scrapes both, with the labels that the PodMonitors give."""
        return [
            {
                "job_name": f"enginewright-{name}",
                "metrics_path": f"/{name}",
                "static_configs": [{"targets": [self._address], "labels": TARGET}],
            }
            for name in ("sidecar", "operator")
        ]


@dataclass(frozen=True)
class Stack:
    """Base URLs of what runs."""

    prometheus: str
    alertmanager: str
    webhook: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; an error of PromQL fails the test."""
        return query(self.prometheus, expr)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that Alertmanager holds as firing."""
        return list(http_json(f"{self.alertmanager}/api/v2/alerts?active=true"))

    def notified(self, name: str) -> list[dict[str, Any]]:
        """Return what the webhook was told of one alert, oldest first."""
        return [
            alert | {"receivedAt": each["time"]}
            for each in http_json(f"{self.webhook}/")
            for alert in each["notification"]["alerts"]
            if alert["labels"]["alertname"] == name
        ]


def query(prometheus: str, expr: str) -> list[dict[str, Any]]:
    """Return the series of an instant query; an error of PromQL fails the test."""
    answer = http_json(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@contextlib.contextmanager
def running(
    folder: Path, scrapes: Sequence[dict[str, Any]], scrape_seconds: float
) -> Iterator[Stack]:
    """Run Prometheus with the shipped rules, Alertmanager and the webhook on free ports."""
    ports = _free_ports(3)
    prometheus, alertmanager, webhook = (f"127.0.0.1:{port}" for port in ports)
    documents = {
        "prometheus.yml": config.prometheus_config(
            scrapes, alertmanager=alertmanager, rules=str(RULES), scrape_seconds=scrape_seconds
        ),
        "alertmanager.yml": config.alertmanager_config(f"http://{webhook}/"),
    }
    for name, body in documents.items():
        (folder / name).write_text(yaml.safe_dump(body))
    commands: dict[str, list[str | Path]] = {
        "webhook": [
            sys.executable, REPOSITORY / "hack/monitoring/webhook.py",
            "--address=127.0.0.1", f"--port={ports[2]}",
        ],
        "alertmanager": [
            program("prometheus-alertmanager"), f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/alertmanager", f"--web.listen-address={alertmanager}",
            "--cluster.listen-address=",
        ],
        "prometheus": [
            program("prometheus"), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/prometheus", f"--web.listen-address={prometheus}",
        ],
    }  # fmt: skip
    stack = Stack(f"http://{prometheus}", f"http://{alertmanager}", f"http://{webhook}")
    with contextlib.ExitStack() as processes:
        for name, command in commands.items():
            processes.enter_context(_process(command, folder / f"{name}.log"))
        for url in (
            f"{stack.prometheus}/api/v1/status/runtimeinfo",
            f"{stack.alertmanager}/api/v2/status",
            stack.webhook,
        ):
            eventually(_answers(url), 30, f"{url} answers; logs in {folder}", interval=0.05)
        yield stack


def _answers(url: str) -> Callable[[], bool]:
    def check() -> bool:
        http_json(url)
        return True

    return check


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _process(command: Sequence[str | Path], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen([str(each) for each in command], stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
