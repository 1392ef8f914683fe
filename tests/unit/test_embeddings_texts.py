"""The texts of one request for embeddings: few are with the model at a time, and none after the request has ended."""

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from enginewright_contract.serving_options import EmbeddingsTask
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.signature import Argument, read_signature
from enginewright_serving.server.api.http_embeddings import HttpEmbeddings
from enginewright_serving.server.inference.request_failures import busy
from enginewright_serving.server.protocol.embeddings import TEXTS, EmbeddingsRequest
from enginewright_serving.server.startup.embeddings import ServedEmbeddings
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.message import Body, HttpRequest, HttpResponse
from enginewright_serving.transport.request_context import RequestContext
from enginewright_serving.transport.settings import TransportSettings

OUTPUT = Argument("states", "tensor(float)", ["n", "t", 1])
TASK = ServeTask(model="m", revision="r", prepared_key="0" * 64, backend="cpu", max_queue=6)
AT_ONCE = 3
BYTES = 1000  # of a text's tokens


class Setting:
    """A request, and what stands for steps, model and connection."""

    def __init__(self, texts: list[str]) -> None:
        self.inflight = InFlight(TransportSettings())
        self.submitted: list[tuple[Any, str, Any]] = []  # responder, text, how it is refused
        self.answers: list[HttpResponse] = []
        self.refused: list[RequestError] = []
        self.full = False
        self.released = 0
        self.request = HttpRequest(b"/v1/embeddings")
        self.request.context = RequestContext()
        task = EmbeddingsTask(pooling="Mean")
        served = ServedEmbeddings("text", (1,), "states", "mask", 1, 0, task)
        answering = SimpleNamespace(
            copies=SimpleNamespace(chooses=lambda: False), release=self.release
        )
        batches = SimpleNamespace(rows=1)
        model = SimpleNamespace(
            batches=batches, concurrent_runs=1, client_signature=read_signature([], [OUTPUT], ())
        )
        inference = SimpleNamespace(note_refusal=lambda _, error: self.refused.append(error))
        self._texts = np.array(texts, object)
        self._connection: Any = SimpleNamespace(
            respond=lambda _, response: self.answers.append(response),
            reserve=lambda *_: True,
            abort=self.request.abandon,
        )
        self._embeddings = HttpEmbeddings(
            TASK,
            cast("Any", model),
            served,
            cast("Any", self),
            cast("Any", inference),
            self.inflight,
            cast("Any", answering),
        )

    def begin(self) -> None:
        plan = EmbeddingsRequest(base64=False, timeout=0.0, priority=3)
        self._embeddings.submit(
            self._connection, self.request, Body(0, 0), plan, {TEXTS: self._texts}, 0.0
        )

    def submit(
        self, call: Any, plan: Any, feeds: Any, text: Any, *, waited: float, check: Any, refuse: Any
    ) -> None:
        """Stand for the steps."""
        assert plan.outputs == ["states", "mask"]
        assert waited >= 0
        check({"mask": np.ones((1, 2), np.int64)})
        if self.full:
            raise busy("the queue is full")
        self.inflight.hold(call, BYTES)
        self.submitted.append((text, feeds["text"][0], refuse))

    def release(self, request: HttpRequest) -> None:
        assert request is self.request
        self.released += 1

    def end(self, place: int = 0) -> str:
        """Have a text run; return it."""
        text, content, _ = self.submitted.pop(place)
        states = np.full((1, 2, 1), len(content) + 1, np.float32)
        times = {"queued": 1.0, "started": 2.0 + len(content), "finished": 3.0 + len(content)}
        arrays = [states, np.ones((1, 2), np.int64)]
        job = SimpleNamespace(arrays=arrays, call=text.call, **times)
        text.succeed(job)
        return str(content)

    @property
    def abandoned(self) -> list[bool]:
        return [text.call.abandoned for text, *_ in self.submitted]

    @property
    def held(self) -> int:
        return self.inflight.account.total


@pytest.fixture
def setting() -> Setting:
    setting = Setting(["eeeee", "a", "ccc", "bb", "dddd"])
    setting.begin()
    return setting


def test_few_texts_are_with_the_model_and_the_next_follow_by_length(setting: Setting) -> None:
    ran = []
    while setting.submitted:
        assert len(setting.submitted) <= AT_ONCE
        assert setting.held == BYTES * len(setting.submitted)
        ran.append(setting.end())
    assert ran == ["a", "bb", "ccc", "dddd", "eeeee"]
    (response,) = setting.answers
    answer = json.loads(b"".join(response.parts))
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3, 4]
    assert answer["usage"]["total_tokens"] == 10
    assert setting.held == 0
    context = setting.request.context
    assert context is not None
    assert (context.queued, context.started, context.finished) == (1.0, 3.0, 8.0)


def test_one_text_that_fails_ends_the_request_once(setting: Setting) -> None:
    setting.end()
    text, _, refuse = setting.submitted.pop()
    refuse(OutOfProfileError("too long"))
    (response,) = setting.answers
    message = json.loads(b"".join(response.parts))["error"]
    assert response.status == 400
    assert "input[" in str(message)
    assert [type(error) for error in setting.refused] == [OutOfProfileError]
    assert all(setting.abandoned)
    setting.submitted[0][0].fail(RequestError(500, "late"))
    setting.end(1)
    text.release()
    setting.submitted[0][0].release()
    assert len(setting.answers) == 1
    assert setting.held == 0


def test_a_text_without_room_waits_for_the_others_of_its_request(setting: Setting) -> None:
    _, content, refuse = setting.submitted.pop()
    refuse(busy("the queue is full"))
    setting.full = True
    setting.end()
    assert not setting.answers
    setting.full = False
    setting.end()
    assert setting.submitted[0][1] == content
    while setting.submitted:
        setting.end()
    assert [response.status for response in setting.answers] == [200]


def test_a_text_without_room_and_without_others_is_refused(setting: Setting) -> None:
    for _ in range(2):
        setting.submitted.pop()[2](busy("the queue is full"))
    assert not setting.answers
    setting.submitted.pop()[2](busy("the queue is full"))
    assert [response.status for response in setting.answers] == [503]
    assert b"Retry-After" in setting.answers[0].headers


def test_a_request_whose_first_text_finds_no_room_is_refused_at_once() -> None:
    setting = Setting(["a", "b"])
    setting.full = True
    with pytest.raises(RequestError, match="the queue is full"):
        setting.begin()
    assert (setting.submitted, setting.answers, setting.held) == ([], [], 0)


def test_texts_of_a_client_that_has_left_are_dropped_and_its_memory_is_released(
    setting: Setting,
) -> None:
    setting.request.abandon()
    assert setting.abandoned == [True] * AT_ONCE
    while setting.submitted:
        assert setting.released == 0
        setting.submitted.pop()[0].release()
    assert (setting.released, setting.answers, setting.held) == (1, [], 0)


def test_a_text_whose_answer_closes_the_connection_holds_no_memory(setting: Setting) -> None:
    setting.submitted.pop()[0].abort()
    assert setting.abandoned == [True] * (AT_ONCE - 1)
    while setting.submitted:
        setting.submitted.pop()[0].release()
    assert (setting.answers, setting.held) == ([], 0)
    assert setting.released > 0
