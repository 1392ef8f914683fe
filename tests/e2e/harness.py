"""A Kubernetes user's view of the cluster: its objects, kubectl, and requests to a Service."""

import contextlib
import functools
import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.api_requests import (
    APPLY_PATCH,
    MERGE_PATCH,
    ApiRequests,
    NotFoundError,
    RefusedError,
    requests_to,
)
from tests.support.waiting import Deadline

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER_NAME = "test" + os.environ.get("PYTEST_XDIST_WORKER", "")  # each process has its own
OPERATOR_NAMESPACE = "enginewright-system"
GPUS = 4  # of node-2
FEWER_GPUS = 2  # of node-1, so that a pod that requests more is on node-2
FAIL_SWITCH = "/tmp/fail"
SHORT_HOLD = {"hold": "5s"}  # of a canary, in tests of something else
HELD_STAGES = (
    "validate",
    "golden",
)  # the library in `held/` keeps them running until /tmp/STAGE exists
# as kubectl deletes
_IN_BACKGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}


def cluster(*arguments: str, timeout: float = 600) -> str:
    """Run the local cluster's command and return its output. Raises CommandError with all output."""
    command = [str(REPOSITORY / "hack/cluster/cluster"), "--name", CLUSTER_NAME, *arguments]
    return run(command, timeout=timeout)


def upgrade(*settings: str) -> None:
    """Install the chart again with these values changed, as a user does."""
    chart = str(REPOSITORY / "charts/enginewright")
    changed = [part for setting in settings for part in ("--set", setting)]
    cluster(
        "helm", "upgrade", "enginewright", chart, "--namespace", OPERATOR_NAMESPACE,
        "--reuse-values", *changed, "--wait", "--timeout", "2m",
    )  # fmt: skip


def run(
    command: list[str],
    *,
    timeout: float = 600,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output. Raises CommandError with all output."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        input=stdin,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class CommandError(AssertionError):
    """A command failed."""

    def __init__(self, command: list[str], code: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{' '.join(command)} -> {code}\n{stdout}\n{stderr}")
        self.stderr = stderr


def eventually(
    check: Callable[[], T], seconds: float = 120, what: str = "", interval: float = 0.5
) -> T:
    """Poll until `check` returns a true value, and return it; `check` may raise meanwhile."""
    deadline = Deadline(seconds)
    last: object = None
    while True:
        try:
            if result := check():
                return result
            last = result
        except (CommandError, RefusedError, OSError) as error:
            last = error
        if deadline.is_over():
            raise AssertionError(
                f"timed out after {seconds} s waiting for {what or 'a condition'}; last: {last}"
            )
        time.sleep(interval)


def cases(request: pytest.FixtureRequest, *tests: str) -> list[pytest.Function]:
    """Return the cases of tests that this run has selected, so that it starts nothing for other tests."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    return [item for item in items if item.originalname in tests]


@dataclass(frozen=True)
class Namespace:
    """One namespace, with kubectl for it."""

    name: str
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 200) -> str:
        """Run kubectl in this namespace."""
        return run([*self._command(), *arguments], stdin=stdin, timeout=timeout)

    def _command(self) -> list[str]:
        program = str(self.kubeconfig.parent / "bin" / "kubectl")
        return [program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.name]

    def apply(self, *objects: dict[str, Any]) -> str:
        """Apply objects like a user: client-side, with strict validation."""
        text = "\n---\n".join(json.dumps(object_) for object_ in objects)
        return self.kubectl("apply", "--filename", "-", stdin=text)

    @property
    def _api(self) -> ApiRequests:
        return requests_to(self.kubeconfig)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object."""
        return self._api.send("GET", self._api.kind(kind).path(self.name, name))

    def items(
        self, kinds: str, selector: str = "", *, fields: str = "", everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """Return all objects of a kind, or of several: `jobs,pods`."""
        query = {"labelSelector": selector, "fieldSelector": fields}
        items = []
        for kind in map(self._api.kind, kinds.split(",")):
            path = kind.path(None if everywhere else self.name)
            identity = {"apiVersion": kind.api_version, "kind": kind.name}
            listed = self._api.send("GET", path, query=query)["items"]
            items += [{**identity, **item} for item in listed]
        return items

    def create(self, obj: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; the API server refuses fields that it does not know."""
        kind = self._api.kind(f"{obj['kind']}.{obj['apiVersion']}")
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._api.send("POST", kind.path(self.name), obj, query=query)

    def put(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Create an object, or make it what it is to be: server-side apply."""
        name = obj["metadata"]["name"]
        path = self._api.kind(f"{obj['kind']}.{obj['apiVersion']}").path(self.name, name)
        query = {"fieldManager": "tests", "force": "true"}
        return self._api.send("PATCH", path, obj, query=query, content_type=APPLY_PATCH)

    def wait_established(self, name: str = "") -> None:
        """Wait until the API server serves a CRD, or all of them; `kubectl wait` fails before one has conditions."""

        def are_established() -> bool:
            crds = [self.get("crd", name)] if name else self.items("crd")
            conditions = [(crd.get("status") or {}).get("conditions") or () for crd in crds]
            return all(
                any((one["type"], one["status"]) == ("Established", "True") for one in condition)
                for condition in conditions
            )

        eventually(are_established, 30, "established CRDs", interval=0.1)

    def token(self, account: str) -> str:
        """Return a token of a service account."""
        path = self._api.kind("serviceaccount").path(self.name, account, "token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self._api.send("POST", path, request)["status"]["token"])

    def patch(
        self, kind: str, name: str, patch: dict[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        """Apply a merge patch to an object."""
        path = self._api.kind(kind).path(self.name, name, subresource)
        return self._api.send("PATCH", path, patch, content_type=MERGE_PATCH)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and wait until it is gone."""
        self._delete(kind, [self.get(kind, name)])

    def delete_all(
        self, kinds: str, selector: str = "", *, fields: str = "", everywhere: bool = False
    ) -> None:
        """Delete all objects of a kind or of several, and wait until they are gone."""
        for kind in kinds.split(","):
            self._delete(kind, self.items(kind, selector, fields=fields, everywhere=everywhere))

    def _delete(self, kind: str, objects: list[dict[str, Any]]) -> None:
        paths = {}
        for metadata in (object_["metadata"] for object_ in objects):
            path = self._api.kind(kind).path(metadata.get("namespace"), metadata["name"])
            paths[path] = metadata["uid"]
            with contextlib.suppress(NotFoundError):
                self._api.send("DELETE", path, _IN_BACKGROUND)

        def is_gone(path: str) -> bool:
            try:
                return bool(self._api.send("GET", path)["metadata"]["uid"] != paths[path])
            except NotFoundError:
                return True

        for path in paths:
            eventually(functools.partial(is_gone, path), 60, f"{path} to be gone", interval=0.05)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return one condition of an InferenceModel; empty if it is missing."""
        conditions = self.get("inferencemodel", name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def wait_ready(self, name: str, seconds: int = 300) -> None:
        """Run `kubectl wait` for Ready."""
        timeout = f"--timeout={seconds}s"
        try:
            self.kubectl(
                "wait", "--for=condition=Ready", f"im/{name}", timeout, timeout=seconds + 10
            )
        except CommandError as error:
            raise AssertionError(f"{error}\n{self.story(name)}") from None

    def wait_condition(
        self, name: str, kind: str, status: str, reason: str, seconds: float = 120
    ) -> dict[str, Any]:
        """Wait for a condition with this status and reason, and return it."""

        def check(model: dict[str, Any]) -> dict[str, Any]:
            conditions = model.get("status", {}).get("conditions", [])
            expected = {"type": kind, "status": status, "reason": reason}
            return next(
                (condition for condition in conditions if expected.items() <= condition.items()), {}
            )

        try:
            return self.watch("im", name, check, seconds, f"{kind}={status}/{reason}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(name)}") from None

    def watch(
        self, kind: str, name: str, check: Callable[[dict[str, Any]], T], seconds: float, what: str
    ) -> T:
        """Watch an object until `check` returns a true value for a state; no state is missed."""
        deadline = Deadline(seconds)
        last: object = None
        path = self._api.kind(kind).path(self.name)
        while (left := deadline.measure_left()) > 0:
            with (
                contextlib.suppress(OSError, RefusedError),  # also at the end of the time
                contextlib.closing(self._api.watch(path, name=name, seconds=left)) as states,
            ):
                for last in states:
                    if result := check(last):
                        return result
            time.sleep(0.05)  # the API server has ended the watch
        raise AssertionError(f"timed out after {seconds} s waiting for {what}; last: {last}")

    def story(self, name: str) -> str:
        """Return the output of the commands that diagnose a failure."""
        model = self.kubectl("describe", f"im/{name}")
        return f"{model}\n{self.kubectl('get', 'jobs,pods,deployments', '--output', 'wide')}"

    def infer(self, model: str, *inputs: dict[str, Any]) -> Any:
        """Send one request to a model's Service; return the answer."""
        with self.forward(f"service/{model}", 80) as url:
            return http_json(f"{url}/v2/models/{model}/infer", {"inputs": [*inputs]})

    @contextlib.contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """Forward a local port to a Service or a pod; yield the base URL."""
        process = subprocess.Popen(
            [*self._command(), "port-forward", target, f":{port}", "--address", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"127\.0\.0\.1:\d+", line)
            if not address:
                process.terminate()
                raise CommandError(["port-forward"], 1, line + process.communicate()[0], "")
            # it prints a line for each connection, and stops forwarding once the pipe is full
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield f"http://{address[0]}"
        finally:
            process.terminate()
            process.wait()


@functools.cache
def image(name: str) -> str:
    """Return the reference of a built image."""
    return run([str(REPOSITORY / "hack/images"), "list", name]).split()[1]


def inference_model(name: str, file: str, *, on: str = "cpu", **spec: Any) -> dict[str, Any]:
    """Return an InferenceModel of a file in the claim `models`, served by one accelerator class."""
    return {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {
            "source": {"uri": f"pvc://models/{file}"},
            "accelerators": [{"class": on}],
            **spec,
        },
    }


def http_json(url: str, body: object = None, timeout: float = 30) -> Any:
    """GET, or POST `body` as JSON; return the answer's JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        return json.load(answer)
