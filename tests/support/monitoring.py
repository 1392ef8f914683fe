"""Debian's Prometheus, Alertmanager and promtool as processes, and their scrape targets."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml

from hack.monitoring import config
from hack.monitoring.config import Config
from hack.monitoring.convert import scrape_configs
from hack.monitoring.dashboards import FOLDER
from hack.monitoring.discovery import targets
from hack.monitoring.tools import program
from tests.e2e.harness import eventually, http_json
from tests.support.expositions import OperatorPod, ServingPod
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.web import Request, WebServer

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "charts/enginewright/files/monitoring/enginewright.rules.yaml"


@dataclass(frozen=True)
class BoardQuery:
    """One query of a dashboard, and where it stands."""

    place: str
    expr: str

    def fill_in(self, **variables: str) -> str:
        """Return the query as Grafana sends it."""
        text = self.expr.replace("$__rate_interval", variables.pop("rate_interval"))
        for name, value in variables.items():
            text = text.replace(f"${name}", value)
        assert "$" not in text, f"a variable of {self.place} has no value: {text}"
        return text


def board_queries(name: str) -> list[BoardQuery]:
    """Return every query of a dashboard: of its panels, variables and annotations."""
    board = json.loads((FOLDER / name).read_text())
    queries = [
        BoardQuery(f"panel `{panel['title']}` {target['refId']}", target["expr"])
        for row in board["panels"]
        for panel in (row, *row.get("panels", ()))
        for target in panel.get("targets", ())
    ]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]  # ours has this form
            queries.append(
                BoardQuery(f"variable {variable['name']}", f"count by ({label}) ({series})")
            )
    return queries + [
        BoardQuery(f"annotation {item['name']}", item["expr"])
        for item in board["annotations"]["list"]
        if "expr" in item
    ]


class Pods:
    """A serving pod and the operator's, as listed by the API server, and with their metrics."""

    def __init__(self, web: Mapping[str, WebServer]) -> None:
        self.serving, self.operator = ServingPod(), OperatorPod()
        self._web = web
        exposed = {"sidecar": self.serving.expose, "http": self.operator.expose}
        for port, expose in exposed.items():
            web[port].routes["/metrics"] = _answer(expose, "text/plain; version=0.0.4")
        web["discovery"].routes["/"] = _answer(
            lambda: json.dumps(targets([self._serving(), self._operator()])).encode(),
            "application/json",
        )

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Self]:
        """Serve meanwhile."""
        with contextlib.ExitStack() as running:
            names = ("sidecar", "http", "discovery")
            yield cls({name: running.enter_context(WebServer()) for name in names})

    def scrape_configs(self, chart: Sequence[Config]) -> list[Config]:
        """Return how the chart has them scraped."""
        return config.through_discovery(scrape_configs(chart), self._web["discovery"].url, 1)

    def _serving(self) -> Config:
        labels = {"enginewright.dev/component": "serve", "enginewright.dev/model": "rank"}
        return self._pod("shop", "rank-1", labels, init=self._container("sidecar", "sidecar"))

    def _operator(self) -> Config:
        name = {f"app.kubernetes.io/{item}": "enginewright" for item in ("name", "instance")}
        labels = name | {"app.kubernetes.io/component": "operator"}
        return self._pod(
            config.OPERATOR_NAMESPACE, "operator-1", labels, self._container("operator", "http")
        )

    def _pod(
        self,
        namespace: str,
        name: str,
        labels: dict[str, str],
        container: Config | None = None,
        init: Config | None = None,
    ) -> Config:
        return {
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "spec": {
                "containers": [container or {"name": "server"}],
                "initContainers": [init] if init else [],
            },
            "status": {"podIP": "127.0.0.1", "phase": "Running"},
        }

    def _container(self, name: str, port: str) -> Config:
        number = int(self._web[port].url.rpartition(":")[2])
        return {"name": name, "ports": [{"name": port, "containerPort": number}]}


def _answer(body: Callable[[], bytes], content_type: str) -> Callable[[Request], None]:
    return lambda request: request.send(body(), Content_Type=content_type)


@dataclass(frozen=True)
class Stack:
    """Base URLs of the running processes."""

    prometheus: str
    alertmanager: str
    webhook: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        return query(self.prometheus, expr)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that Alertmanager holds as firing."""
        return list(http_json(f"{self.alertmanager}/api/v2/alerts?active=true"))

    def list_notifications(self, name: str) -> list[dict[str, Any]]:
        """Return the webhook's notifications of one alert, oldest first."""
        return [
            alert | {"receivedAt": item["time"]}
            for item in http_json(f"{self.webhook}/")
            for alert in item["notification"]["alerts"]
            if alert["labels"]["alertname"] == name
        ]


def query(prometheus: str, expr: str) -> list[dict[str, Any]]:
    """Return the series of an instant query; an error of PromQL fails the test."""
    answer = http_json(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def promtool(*arguments: str, given: str = "") -> str:
    """Run promtool with `given` on standard input, which must succeed; return what it says."""
    done = run_program([program("promtool"), *arguments], timeout=60, input=given)
    return done.stdout


def lint_metrics(exposition: str) -> None:
    """Check with promtool that names, units and help texts are as Prometheus wants them."""
    assert exposition.startswith("# HELP ")
    promtool("check", "metrics", given=exposition)


def evaluate(
    folder: Path,
    series: Mapping[str, str],
    expected: Mapping[str, Mapping[str, float]],
    at: str,
    rules: Sequence[Path] = (),
) -> None:
    """Check with promtool what expressions give `at` a time, by labels, of series and of what rules make of them."""
    results = [
        {
            "expr": expression,
            "eval_time": at,
            "exp_samples": [{"labels": key, "value": value} for key, value in samples.items()],
        }
        for expression, samples in expected.items()
    ]
    inputs = [{"series": key, "values": values} for key, values in series.items()]
    test = {"interval": "30s", "input_series": inputs, "promql_expr_test": results}
    document = {
        "rule_files": [str(rule) for rule in rules],
        "evaluation_interval": "30s",
        "tests": [test],
    }
    file = folder / "one.test.yaml"
    file.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(file))


@contextlib.contextmanager
def running(
    folder: Path, scrapes: Sequence[dict[str, Any]], scrape_seconds: float
) -> Iterator[Stack]:
    """Run Prometheus with the shipped rules, Alertmanager and the webhook on free ports."""
    ports = [free_port() for _ in range(3)]
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
            processes.enter_context(process(command, folder / f"{name}.log"))
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


@contextlib.contextmanager
def process(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Run a program during the context, with its output in `log`."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            [str(item) for item in command],
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
