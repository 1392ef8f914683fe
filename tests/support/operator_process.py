"""The operator as a process of its own, as a pod would run it, against any API server."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.harness import REPOSITORY, Namespace, eventually, run
from tests.support.operator_start import ForkedOperator
from tests.support.ports import free_port
from tests.support.yaml_text import load_documents

CPU_IMAGE = "example.com/enginewright/cpu:1"
STORE = "enginewright-store"
INTERPRETED = ("-m", "enginewright.main")  # the operator in a new interpreter
WRITING = ("POST", "PUT", "PATCH", "DELETE")


def store_settings(**gc: object) -> dict[str, object]:
    """Return the settings of a store; a collection begins at any time of the day, if it is not `enabled=False`."""
    return {"claim": STORE, "size": "1Gi", "accessMode": "ReadWriteMany", "gc": gc}


def chart_kubeconfig(system: Namespace, folder: Path, *values: str) -> Path:
    """Return a kubeconfig with no more rights than the chart grants with these values."""
    program = str(system.kubeconfig.parent / "bin/helm")
    chart = str(REPOSITORY / "charts/enginewright")
    template = ["template", "enginewright", chart, "--namespace", system.name]
    needed = ("images.operator=o:1", "images.runtime.cpu=c:1")
    sets = [f"--set={value}" for value in (*needed, *values)]
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rendered = load_documents(run([program, *template, *sets]))
    objects = [item for item in rendered if item["kind"] in kinds]
    for object_ in objects:
        Namespace(object_["metadata"].get("namespace", "default"), system.kubeconfig).put(object_)
    _wait_granted(system, objects)
    token = system.token("enginewright")
    document = yaml.safe_load(system.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    limited = folder / "kubeconfig"
    limited.write_text(yaml.safe_dump(document))
    return limited


def _wait_granted(system: Namespace, objects: list[dict[str, Any]]) -> None:
    """Wait until the API server, which learns of roles by a watch of its own, knows all bindings."""

    def place(obj: dict[str, Any]) -> str:
        return str(obj["metadata"].get("namespace", ""))

    rules = {
        (object_["kind"], place(object_), object_["metadata"]["name"]): object_["rules"]
        for object_ in objects
        if object_["kind"].endswith("Role")
    }
    for binding in objects:
        if not binding["kind"].endswith("Binding"):
            continue
        role = binding["roleRef"]
        within = place(binding) if role["kind"] == "Role" else ""
        rule = rules[role["kind"], within, role["name"]][0]
        resource, _, subresource = rule["resources"][0].partition("/")
        asked = {
            "namespace": place(binding),
            "verb": rule["verbs"][0],
            "group": rule["apiGroups"][0],
            "resource": resource,
            "subresource": subresource,
            "name": rule.get("resourceNames", [""])[0],
        }
        eventually(partial(_may, system, asked), 20, f"the right to {asked}", interval=0.05)


def _may(system: Namespace, asked: dict[str, str]) -> bool:
    user = f"system:serviceaccount:{system.name}:enginewright"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {"user": user, "resourceAttributes": asked},
    }
    return bool(system.create(review)["status"]["allowed"])


class OperatorProcess:
    """Started by `with`; `log` is its output once it has ended."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        folder: Path,
        *,
        settings: Mapping[str, object] | None = None,
        images: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """Describe an operator; a `program` is run by a new interpreter, as in a container, instead of forked."""
        self._program = program
        self.port = free_port()
        self._log_path = folder / f"operator-{self.port}.log"
        config = {
            "images": {"cpu": CPU_IMAGE, **(images or {})},
            "store": store_settings(enabled=False),
            "logLevel": "debug",
            "httpPort": self.port,
            **(settings or {}),
        }
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": namespace,
            "ENGINEWRIGHT_CONFIG": json.dumps(config),
        }
        self._process: ForkedOperator | subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log_path.open("ab") as log:
            if not self._program:
                self._process = ForkedOperator(self._log_path, self.environment)
                return self
            self._process = subprocess.Popen(
                [sys.executable, *self._program],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if kind is not None:
            print(self.log[-20_000:])

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def wait_ready(self) -> Self:
        """Wait until everything is listed, it leads and the workers run.

        After another one was killed that takes until the Lease has expired.
        """
        eventually(lambda: self.leads and self._is_ready, 30, "ready", interval=0.05)
        return self

    def wait_standby(self) -> Self:
        """Wait until everything can be listed and another one is known to lead."""
        eventually(
            lambda: self._is_ready and "standing by" in self.log, 30, "standby", interval=0.05
        )
        return self

    @property
    def leads(self) -> bool:
        """Tell whether it acts."""
        return self.total("enginewright_leader") == 1

    @property
    def _is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def _end(self) -> None:
        """End it so that the next one need not wait for the Lease to expire."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """End it as a node that loses power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def exit_code(self) -> int | None:
        """Return the exit code once it has exited."""
        return self._process.poll() if self._process is not None else None

    def wait_exit(self) -> int:
        """Wait until it exits on its own; return the exit code."""
        assert self._process is not None
        code = self._process.wait(20)
        self._process = None
        return code

    def terminate(self) -> tuple[int, float]:
        """End it as the kubelet does; exit code and seconds."""
        started = time.monotonic()
        self.tell_to_end()
        return self.wait_exit(), time.monotonic() - started

    def tell_to_end(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def get(self, path: str) -> tuple[int, str]:
        """GET from its HTTP server; status 0 while it does not listen."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def total(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric over all series with these labels."""
        return self._metrics().total(metric, **labels)

    def writes(self) -> int:
        """Return how many writing requests it has sent."""
        return self._metrics().writes

    def reads(self) -> int:
        """Return how many reading requests it has sent, kopf's left aside."""
        return int(self.total("rest_client_requests_total", method="GET"))

    def passes(self) -> int:
        """Return how many reconciles of models have ended."""
        return self._metrics().passes("inferencemodel")

    def engine_passes(self) -> int:
        """Return how many reconciles of InferenceEngines have ended."""
        return self._metrics().passes("inferenceengine")

    def _metrics(self) -> "_Metrics":
        return _Metrics(self.get("/metrics")[1])

    def wait_passes(self, count: int, seconds: float = 30) -> None:
        """Wait until so many reconciles of models have ended and nothing is under way."""

        def is_done() -> bool:
            now = self._metrics()
            busy = now.total("workqueue_depth") + now.total("workqueue_unfinished_work_seconds")
            return not busy and now.passes("inferencemodel") >= count

        eventually(is_done, seconds, f"{count} reconciles", interval=0.05)

    def wait_quiet(self, window: float = 1.0) -> None:
        """Wait until it has neither written nor reconciled for `window` seconds.

        A key that comes back after a write does so within a fraction of that.
        """
        seen = (-1, -1, -1)
        since = time.monotonic()

        def quiet() -> bool:
            nonlocal seen, since
            metrics = self._metrics()
            now = (
                metrics.writes,
                metrics.passes("inferencemodel"),
                metrics.passes("inferenceengine"),
            )
            if now != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since >= window

        eventually(quiet, 60, "quiet", interval=0.1)


class _Metrics:
    """An exposition of metrics, at one time."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._samples = [sample for family in families for sample in family.samples]

    def total(self, metric: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        )

    @property
    def writes(self) -> int:
        return int(sum(self.total("rest_client_requests_total", method=item) for item in WRITING))

    def passes(self, controller: str) -> int:
        return int(self.total("controller_runtime_reconcile_total", controller=controller))
