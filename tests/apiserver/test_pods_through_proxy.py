"""Outside the cluster, the operator polls pods through a real API server's proxy.

The pod is an object whose address is the control plane's own; what answers there is a real server.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from driver.layout import Cluster
from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import POD
from enginewright.controller.routing import ModelKey
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.errors import KubeError
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.pod_http import (
    MAX_BODY,
    BadAnswer,
    NoAnswer,
    PodAddress,
    PodHttp,
    pod_http,
)
from enginewright.kube.resources import PODS
from enginewright.manifests.labels import REVISION, SERVE, of_model
from enginewright_contract.task import SIDECAR_PORT
from enginewright_contract.verdict import RELEASE_ANNOTATION, RELEASE_SECONDS
from prometheus_client import CollectorRegistry

from tests.e2e.harness import Namespace
from tests.support import simulated_cluster as played
from tests.support.listings import show
from tests.support.plan_objects import make_object
from tests.support.waiting import Deadline

pytestmark = pytest.mark.apiserver

ADDRESS = "192.0.2.1"  # the API server's own: the only one in its network without nodes
VERDICT = {
    "model": "m",
    "revision": "r1",
    "backend": "cpu",
    "ready": True,
    "admitted": True,
    "checks": [{"check": "golden", "state": "ok"}],
    "fallback": {"active": False},
}
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, headers, body = json.load(open(sys.argv[3]))
        with open(sys.argv[4], "a") as log:
            log.write(json.dumps([self.path, dict(self.headers)]) + "\\n")
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

server = HTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
print("listens", flush=True)
server.serve_forever()
"""


class PodServer:
    """Answers as a pod would, from inside the control plane's network."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._answer = folder / "answer.json"
        self._log = folder / "requests"
        self._log.touch()
        self.say(json.dumps(VERDICT))
        arguments = [ADDRESS, str(SIDECAR_PORT), str(self._answer), str(self._log)]
        self.process = Popen(
            ["nsenter", cluster.enter, "--", sys.executable, "-c", SERVER, *arguments], stdout=PIPE
        )
        assert self.process.stdout is not None
        assert (
            self.process.stdout.readline() == b"listens\n"
        )  # a pod that does not answer is polled later

    def say(self, body: str, status: int = 200, **headers: str) -> None:
        self._answer.write_text(json.dumps([status, headers, body]))

    def requests(self) -> list[tuple[str, dict[str, str]]]:
        lines = self._log.read_text().splitlines()
        return [(path, headers) for path, headers in map(json.loads, lines)]


@pytest.fixture
def server(kubeconfig: Path, tmp_path: Path) -> Iterator[PodServer]:
    server = PodServer(Cluster(kubeconfig.parent.name), tmp_path)
    yield server
    server.process.kill()
    server.process.communicate(timeout=10)


@pytest.fixture
async def http(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodHttp]:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    http = pod_http()
    yield http
    await http.close()


def add_pod(namespace: Namespace) -> PodAddress:
    labels = {**of_model("m", SERVE), REVISION: "r1"}
    container = {"name": "sidecar", "image": "example.com/cpu:1"}
    pod: dict[str, Any] = make_object("Pod", "p", labels=labels, spec={"containers": [container]})
    played.add_account(namespace)
    namespace.create(pod)
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                **container,
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    }
    namespace.patch("pod", "p", {"status": status}, "status")
    return PodAddress(namespace.name, "p", ADDRESS, SIDECAR_PORT)


async def get_verdict(http: PodHttp, pod: PodAddress) -> bytes:
    """Poll until the server has started."""
    deadline = Deadline(20)
    while True:
        try:
            return await http.get(pod, "/verdict")
        except NoAnswer:
            if deadline.is_over():
                raise
            await asyncio.sleep(0.1)


async def test_a_pod_answers_through_the_api_server(
    namespace: Namespace, server: PodServer, http: PodHttp
) -> None:
    pod = add_pod(namespace)
    assert json.loads(await get_verdict(http, pod)) == VERDICT
    path, headers = server.requests()[-1]
    assert path == "/verdict"
    assert "Authorization" not in headers
    server.say("", 302, Location="http://192.0.2.1:8081/elsewhere")
    count = len(server.requests())
    with pytest.raises(BadAnswer, match="302"):
        await http.get(pod, "/verdict")
    assert len(server.requests()) == count + 1
    server.say("x" * (MAX_BODY + 1))
    with pytest.raises(BadAnswer, match="longer"):
        await http.get(pod, "/verdict")


async def test_a_pod_that_does_not_answer(namespace: Namespace, http: PodHttp) -> None:
    pod = add_pod(namespace)
    with pytest.raises(NoAnswer):
        await http.get(pod, "/verdict")
    gone = PodAddress(namespace.name, "gone", ADDRESS, SIDECAR_PORT)
    with pytest.raises(BadAnswer, match="404"):
        await http.get(gone, "/verdict")


async def test_the_poller_keeps_what_a_listed_pod_says(
    namespace: Namespace, server: PodServer, http: PodHttp
) -> None:
    add_pod(namespace)
    registry = CollectorRegistry()
    client = KubeClient(load_connection, RestMetrics(registry))
    cache = ObjectCache()
    show(cache, PODS, await client.list(PODS, namespace.name))
    woken: asyncio.Queue[ModelKey] = asyncio.Queue()
    poller = VerdictPoller(
        cache,
        http,
        registry,
        changed=woken.put_nowait,
        engine_changed=lambda *_: None,
        write=client.apply,
        wall=time.time,
    )
    poller.start()
    try:
        key = await asyncio.wait_for(woken.get(), 30)
        assert key == ModelKey(namespace.name, "m")
        assert poller.verdicts_of(cache.views(POD, cache.all(PODS)))["p"].fallback is not None
        server.say(json.dumps({**VERDICT, "ready": False}))
        await asyncio.wait_for(woken.get(), 60)
        assert not poller.verdicts_of(cache.views(POD, cache.all(PODS)))["p"].ready
    finally:
        await poller.stop()
        await client.close()


async def test_a_pod_is_released_by_one_write_and_held_back_by_another(
    namespace: Namespace, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server-side apply owns our annotation only, and never writes to another pod of that name."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    add_pod(namespace)
    client = KubeClient(load_connection, RestMetrics(CollectorRegistry()))
    (listed,) = (await client.list(PODS, namespace.name)).items
    identity = {key: listed["metadata"][key] for key in ("namespace", "name", "uid")}

    async def annotate(annotations: dict[str, str], **other: str) -> dict[str, str]:
        metadata = {**identity, **other, "annotations": annotations}
        await client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        pod = await client.get(PODS, namespace.name, "p")
        return dict(pod["metadata"].get("annotations") or {})

    namespace.kubectl("annotate", "pod", "p", "note=mine")
    until = str(int(time.time()) + RELEASE_SECONDS)
    both = {"note": "mine", RELEASE_ANNOTATION: until}
    assert await annotate({RELEASE_ANNOTATION: until}) == both
    assert await annotate({}) == {"note": "mine"}
    with pytest.raises(KubeError):
        await annotate({RELEASE_ANNOTATION: until}, uid="another-pod-of-that-name")
    with pytest.raises(KubeError):
        await annotate({RELEASE_ANNOTATION: until}, name="gone")
    await client.close()
