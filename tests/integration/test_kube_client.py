"""The client over real HTTP on loopback: requests as they go out, answers as errors come back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from enginewright.kube.client import _FIRST_BACKOFF, KubeClient
from enginewright.kube.errors import (
    Forbidden,
    NotFound,
    Transient,
)
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_MODELS,
    JOBS,
    NODES,
)
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import CollectorRegistry

Answer = web.Response | Callable[[], web.Response]


class Server:
    """Answers with what it was given, in order; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.requests.append(
            (request.method, request.path, dict(request.query), json.loads(text) if text else None)
        )
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, web.Response) else answer()


class Setup:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.waits: list[float] = []
        self.loads = 0
        self.registry = CollectorRegistry()
        self.client = KubeClient(self.load, RestMetrics(self.registry))

    async def load(self) -> Configuration:
        self.loads += 1
        configuration = Configuration(host=f"http://127.0.0.1:{self.port}")
        configuration.api_key["BearerToken"] = f"Bearer token-{self.loads}"
        return configuration

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made = Setup(server, runner.addresses[0][1])
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    yield made
    await made.client.close()
    await runner.cleanup()


def ok(**body: Any) -> web.Response:
    return web.json_response(body)


def refuse(code: int, message: str = "no", **headers: str) -> web.Response:
    status = {"kind": "Status", "message": message, "reason": "Why"}
    return web.json_response(status, status=code, headers=headers)


async def test_apply_is_forced_server_side_apply_by_our_manager(setup: Setup) -> None:
    setup.server.answers = [ok(kind="Job")]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "ns"}}
    await setup.client.apply(job)
    ((method, path, query, body),) = setup.server.requests
    assert (method, path) == ("PATCH", "/apis/batch/v1/namespaces/ns/jobs/j")
    assert query == {"fieldManager": "enginewright", "force": "true"}
    assert body == job
    assert setup.server.headers[0]["Content-Type"] == "application/apply-patch+yaml"
    assert setup.server.headers[0]["Authorization"] == "Bearer token-1"


async def test_apply_status_goes_to_the_subresource(setup: Setup) -> None:
    setup.server.answers = [ok()]
    await setup.client.apply_status(
        {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "AcceleratorClass",
            "metadata": {"name": "cpu"},
            "status": {},
        }
    )
    assert setup.server.requests[0][1] == (
        "/apis/enginewright.dev/v1alpha1/acceleratorclasses/cpu/status"
    )


async def test_a_log_is_text_and_its_refusal_a_reason(setup: Setup) -> None:
    setup.server.answers = [web.Response(body=b"{not JSON\n\xff"), refuse(403, "no log for you")]
    log = await setup.client.read_log("ns", "p", "convert", tail=5, previous=True)
    assert log == "{not JSON\n\ufffd"
    ((_, path, query, _),) = setup.server.requests
    assert path == "/api/v1/namespaces/ns/pods/p/log"
    assert query == {"container": "convert", "tailLines": "5", "previous": "true"}
    with pytest.raises(Forbidden, match="no log for you"):
        await setup.client.read_log("ns", "p", "convert", tail=5)


async def test_a_patch_merges(setup: Setup) -> None:
    setup.server.answers = [ok(kind="InferenceModel")]
    changes = {"metadata": {"annotations": {"kept": "x", "removed": None}}}
    await setup.client.patch(INFERENCE_MODELS, "ns", "m", changes, manager="another-manager")
    ((method, path, query, body),) = setup.server.requests
    where = "/apis/enginewright.dev/v1alpha1/namespaces/ns/inferencemodels/m"
    assert (method, path, query) == ("PATCH", where, {"fieldManager": "another-manager"})
    assert body == changes
    assert setup.server.headers[0]["Content-Type"] == "application/merge-patch+json"


async def test_delete_names_the_uid_and_cleans_up_in_the_background(setup: Setup) -> None:
    setup.server.answers = [ok(kind="Status"), ok(kind="Job", metadata={}), refuse(404)]
    arguments = (JOBS, "ns", "j")
    assert await setup.client.delete(*arguments, uid="u") is None
    assert await setup.client.delete(*arguments, uid="u") == {"kind": "Job", "metadata": {}}
    assert await setup.client.delete(*arguments, uid="u") is None
    body = setup.server.requests[0][3]
    assert body["preconditions"] == {"uid": "u"}
    assert body["propagationPolicy"] == "Background"


async def test_lists_are_read_in_pages_and_say_their_kind(setup: Setup) -> None:
    setup.server.answers = [
        ok(metadata={"continue": "more", "resourceVersion": "7"}, items=[{"metadata": {}}]),
        ok(metadata={"resourceVersion": "7"}, items=[{"metadata": {}}]),
    ]
    listing = await setup.client.list(DEPLOYMENTS, labels="a=b", fields="metadata.name=x")
    assert [item["kind"] for item in listing.items] == ["Deployment", "Deployment"]
    assert listing.items[0]["apiVersion"] == "apps/v1"
    assert listing.resource_version == "7"
    first, second = (query for _, _, query, _ in setup.server.requests)
    assert first == {"limit": "200", "labelSelector": "a=b", "fieldSelector": "metadata.name=x"}
    assert second["continue"] == "more"


async def test_a_list_that_expires_between_pages_is_read_whole(setup: Setup) -> None:
    setup.server.answers = [
        ok(metadata={"continue": "more", "resourceVersion": "7"}, items=[{"metadata": {}}]),
        refuse(410),
        ok(metadata={"resourceVersion": "9"}, items=[{"metadata": {}}]),
    ]
    listing = await setup.client.list(NODES)
    assert (len(listing.items), listing.resource_version) == (1, "9")
    assert "limit" not in setup.server.requests[2][2]


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_transient_errors_are_retried(setup: Setup, code: int) -> None:
    setup.server.answers = [refuse(code), refuse(code), ok(kind="Node")]
    assert await setup.client.get(NODES, None, "n") == {"kind": "Node"}
    assert len(setup.waits) == 2
    # Doubled each time, with half of it as jitter to either side.
    assert 0.5 <= setup.waits[0] / _FIRST_BACKOFF <= 1.5
    assert 1 <= setup.waits[1] / _FIRST_BACKOFF <= 3


async def test_attempts_are_bounded_and_retry_after_is_handed_on(setup: Setup) -> None:
    setup.server.answers = [refuse(429, "slow down", **{"Retry-After": "1"}) for _ in range(4)]
    with pytest.raises(Transient, match="slow down") as caught:
        await setup.client.get(NODES, None, "n")
    assert caught.value.retry_after == 1
    assert all(wait >= 1 for wait in setup.waits)
    assert len(setup.server.requests) == 4


async def test_a_long_wait_is_left_to_the_queue(setup: Setup) -> None:
    setup.server.answers = [refuse(503, **{"Retry-After": "60"})]
    with pytest.raises(Transient) as caught:
        await setup.client.get(NODES, None, "n")
    assert caught.value.retry_after == 60
    assert setup.waits == []


async def test_a_refused_connection_is_transient_and_counted(setup: Setup) -> None:
    setup.port = 1  # nothing listens there
    with pytest.raises(Transient, match="no response from the API server"):
        await setup.client.get(NODES, None, "n")
    labels = {"method": "GET", "code": "<error>"}
    assert setup.registry.get_sample_value("rest_client_requests_total", labels) == 4


async def test_an_answer_that_is_no_json_is_transient(setup: Setup) -> None:
    setup.server.answers = [lambda: web.Response(text="<html>") for _ in range(4)]
    with pytest.raises(Transient, match="not JSON"):
        await setup.client.get(NODES, None, "n")


async def test_a_stale_token_is_replaced_once(setup: Setup) -> None:
    setup.server.answers = [refuse(401), ok(kind="Node"), refuse(401), refuse(401)]
    await setup.client.get(NODES, None, "n")
    assert [headers["Authorization"] for headers in setup.server.headers] == [
        "Bearer token-1",
        "Bearer token-2",
    ]
    with pytest.raises(Forbidden):
        await setup.client.get(NODES, None, "n")


async def test_refusals_are_not_tried_again(setup: Setup) -> None:
    setup.server.answers = [refuse(403, "jobs is forbidden")]
    with pytest.raises(Forbidden, match="jobs is forbidden"):
        await setup.client.get(JOBS, "ns", "j")
    assert setup.waits == []


async def test_requests_are_counted_and_timed(setup: Setup) -> None:
    setup.server.answers = [ok(), refuse(404)]
    await setup.client.get(NODES, None, "n")
    with pytest.raises(NotFound):
        await setup.client.get(NODES, None, "n")
    sample = setup.registry.get_sample_value
    assert sample("rest_client_requests_total", {"method": "GET", "code": "200"}) == 1
    assert sample("rest_client_requests_total", {"method": "GET", "code": "404"}) == 1
    assert sample("rest_client_request_duration_seconds_count", {"verb": "GET"}) == 2


async def test_warnings_of_the_server_are_reported_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    warned = {"Warning": '299 - "unknown field \\"status.new\\""'}
    setup.server.answers = [web.json_response({}, headers=warned) for _ in range(2)]
    for _ in range(2):
        await setup.client.get(NODES, None, "n")
    assert caplog.text.count("unknown field") == 1
