"""What many clients ask the sidecar for is built when it changes, not for each of them. No IO."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from enginewright_contract.execution import Driver, Execution, PlacementFacts
from enginewright_contract.task import Promise, ServeTask
from enginewright_contract.verdict import Verdict
from enginewright_serving.sidecar.app import SidecarApp
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.pod_state import OF_EXECUTION, PodState
from enginewright_serving.transport.message import HttpRequest, HttpResponse

from tests.support import manifests

GPU: Final = "CUDAExecutionProvider"
CPU: Final = "CPUExecutionProvider"
TASK: Final = ServeTask(
    model="m",
    revision="r",
    prepared_key="a" * 64,
    backend="cuda",
    promise=Promise(policy="Forbid"),
)
MANIFEST: Final = manifests.manifest(
    recipe=manifests.CPU_RECIPE.model_copy(update={"backend": "cuda"}), nodes=4
)


def execution(**nodes: int) -> Execution:
    return Execution(
        model="m",
        revision="r",
        backend="cuda",
        provider=GPU,
        providers=(GPU, CPU),
        session=1 if GPU in nodes else 2,
        placement=PlacementFacts(nodes=nodes),
        driver=Driver(needed=True, present=True, version="580.1"),
        model_digest="d" * 64,
        prepared_key="a" * 64,
        opset=17,
        ort_distributions=("onnxruntime-gpu",),
        ort_version="1.31.1",
        backend_version="13.0",
        runtime_version="0.1.0",
    )


class Pod:
    """A pod whose clock is given, and its sidecar's application."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = PodState(TASK, MANIFEST, 1, lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def runs(self, **nodes: int) -> None:
        self.state.execution(execution(**nodes), OF_EXECUTION)

    def infers(self, *, wrong: str | None = None, error: float = 0.0) -> None:
        self.state.golden(ProbeResult("s0", 0.01, 0.0, wrong=wrong, error=error, compared=1), 1.0)

    def refuses(self) -> None:
        self.state.golden(ProbeResult("s0", 0.0, 0.0, not_run="too busy"), 1.0)


# each changes the verdict
EVENTS: Final[tuple[Callable[[Pod], None], ...]] = (
    lambda pod: pod.state.server_missed("it does not listen", unreachable=True),
    lambda pod: pod.state.server(live=True, ready=True),
    lambda pod: pod.state.responses_missed("it does not count"),
    lambda pod: pod.state.responses({200: 10.0}),
    lambda pod: pod.state.execution_missed("it returned 500", OF_EXECUTION, foreign=False),
    lambda pod: pod.runs(**{GPU: 4}),
    lambda pod: pod.refuses(),
    lambda pod: pod.infers(),
    lambda pod: pod.infers(error=1e-3),
    lambda pod: pod.infers(wrong="output 'y' differs"),
    lambda pod: pod.infers(error=1e-4),
    lambda pod: pod.runs(**{CPU: 4}),
    lambda pod: pod.state.release(2.0),
    lambda pod: pod.passes(2.0),  # it is no longer released
    lambda pod: pod.passes(6.0),  # what is polled each second has expired
    lambda pod: pod.passes(60.0),  # and everything else
    lambda pod: pod.state.execution_missed("it has none", OF_EXECUTION, foreign=True),
    lambda pod: pod.state.server(live=True, ready=False),
)


def test_a_verdict_is_kept_until_something_changes_it() -> None:
    pod = Pod()
    for number, event in enumerate(EVENTS):
        before = pod.state.verdict()
        assert pod.state.verdict() is before
        event(pod)
        reported = pod.state.verdict()
        assert reported != before, number
        replayed = Pod()
        for item in EVENTS[: number + 1]:
            item(replayed)
        assert reported == replayed.state.verdict(), number


class Server:
    """What a monitor knows of a server that counts how often it is asked."""

    measurements_age = 3600.0

    def __init__(self) -> None:
        self.scrapes = 0
        self.measured = 0

    async def scrape(self) -> bytes:
        self.scrapes += 1
        await asyncio.sleep(0)
        return b""

    async def measure(self) -> None:
        self.measured += 1


class Client:
    """A connection that keeps what it is answered."""

    def __init__(self) -> None:
        self.answers: list[HttpResponse] = []

    def respond(self, request: HttpRequest, response: HttpResponse) -> None:
        assert request.replaceable, "it waits for its answer"
        self.answers.append(response)


def application(pod: Pod, server: Any) -> SidecarApp:
    return SidecarApp(pod.state, server)


def ask(app: SidecarApp, path: str, client: Any) -> HttpResponse | None:
    request = HttpRequest(path.encode())
    request.method = b"GET"
    assert app.admit(request) is None
    return app.serve(client, request)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_verdict_is_encoded_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    pod, encoded = Pod(), list[Verdict]()
    original = Verdict.to_json

    def count(verdict: Verdict) -> str:
        encoded.append(verdict)
        return original(verdict)

    monkeypatch.setattr(Verdict, "to_json", count)
    app = application(pod, Server())
    for event in EVENTS:
        event(pod)
        encoded.clear()
        answers = [ask(app, "/verdict", Client()) for _ in range(100)]
        assert encoded == [pod.state.verdict()]
        bodies = {bytes(part) for answer in answers if answer for part in answer.parts}
        assert [Verdict.model_validate_json(body) for body in bodies] == [pod.state.verdict()]


async def test_metrics_are_built_once_for_concurrent_requests() -> None:
    server, clients = Server(), [Client() for _ in range(50)]
    app = application(Pod(), server)
    for client in clients:
        assert ask(app, "/metrics", client) is None
    await turns()
    assert server.scrapes == 1
    assert [answer.status for client in clients for answer in client.answers] == [200] * 50


async def test_nothing_is_kept_for_a_client_that_leaves_before_it_is_answered() -> None:
    server = Server()
    left: Any = Client()
    app = application(Pod(), server)
    assert ask(app, "/metrics", left) is None
    app.remove_connection(left)
    assert not app._answering
    await turns()
    assert server.scrapes <= 1
    assert left.answers == []


async def test_metrics_are_never_older_than_the_verdict() -> None:
    pod, server, client = Pod(), Server(), Client()
    app = application(pod, server)
    ask(app, "/metrics", client)
    await turns()
    pod.infers(wrong="output 'y' differs")
    ask(app, "/metrics", client)
    await turns()
    assert server.scrapes == 2
    before, after = (bytes(answer.parts[0]) for answer in client.answers)
    assert before != after


async def test_a_refusal_before_there_are_measurements_is_not_kept() -> None:
    server, client = Server(), Client()
    app = application(Pod(), server)
    for _ in range(2):
        assert ask(app, "/measurements", client) is None
        await turns()
    assert server.measured == 2
    assert [answer.status for answer in client.answers] == [503, 503]
    assert b"has not reported" in client.answers[0].parts[0]


async def test_a_higher_rate_begins_with_a_request_that_asks_for_it() -> None:
    pod = Pod()
    app = application(pod, Server())
    for query, expected in (("", False), ("?probe=0", False), ("?probe=1", True)):
        ask(app, f"/measurements{query}", Client())
        assert pod.state.probe_facts.probing is expected
    await turns()
