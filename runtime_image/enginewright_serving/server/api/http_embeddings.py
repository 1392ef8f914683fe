"""Requests for embeddings: each text is a request to the model of its own, and may run in a batch with any others.

Runs in the event loop, but for the pooling of large outputs.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

from enginewright_serving.server.api.http_responder import Answering, HttpResponder
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.processing_requests import ChainedRequests
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.embeddings import (
    TEXTS,
    EmbeddingsEncoder,
    EmbeddingsRequest,
)
from enginewright_serving.server.protocol.encode import Encoder
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.server.startup.embeddings import ServedEmbeddings
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.message import Body, HttpRequest

_LEAST_AT_ONCE: Final = 8  # texts of a request, so that all processes of the steps have work
_LARGE: Final = 256 * 1024  # elements whose pooling may take more than a millisecond
_EMPTY: Final = np.zeros(0, np.float32)  # of a text that has no vector yet


class HttpEmbeddings:
    """Answers requests for the embeddings of one model."""

    def __init__(
        self,
        task: ServeTask,
        model: ServedModel,
        served: ServedEmbeddings,
        steps: ChainedRequests,
        inference: InferenceService,
        inflight: InFlight,
        answering: Answering,
    ) -> None:
        self.served = served
        self.steps = steps
        self.inference = inference
        self.inflight = inflight
        self.answering = answering
        self.encoder = EmbeddingsEncoder(task.model)
        self.model_encoder = Encoder(task.model, task.revision, model.client_signature)
        # a list of texts fills two batches for every run, and leaves half of the queue to others
        rows = 2 * model.batches.rows * model.concurrent_runs
        self.most_at_once = min(max(rows, _LEAST_AT_ONCE), max(task.max_queue // 2, 1))

    def submit(
        self,
        connection: Connection,
        request: HttpRequest,
        body: Body,
        plan: EmbeddingsRequest,
        feeds: Feeds,
        waited: float,
    ) -> None:
        """Queue the texts of a decoded request, `waited` seconds of whose timeout have passed; may raise RequestError."""
        del body
        responder = HttpResponder(self.answering, self.encoder, connection, request, plan, None)
        _Texts(self, request, responder, plan, feeds[TEXTS], time.monotonic() - waited).begin()

    def copy(self, text: str, values: NDArray[Any]) -> None:
        """Keep a text and the model's output for it as an inference request, which a canary answers too."""
        served = self.served
        document = {
            "inputs": [
                {"name": served.text, "datatype": "BYTES", "shape": served.shape, "data": [text]}
            ],
            "outputs": [{"name": served.output, "parameters": {"binary_data": True}}],
        }
        content = orjson.dumps(document)
        body = Body(len(content), 0)
        body.view()[:] = content
        plan = InferenceRequest(None, {}, (), 0, [served.output], (True,), 0.0)
        self.answering.copies.add(body, None, self.model_encoder.encode(plan, [values]))


class _Texts:
    """The texts of one request, of which a few are with the model at a time."""

    def __init__(
        self,
        embeddings: HttpEmbeddings,
        request: HttpRequest,
        responder: HttpResponder[EmbeddingsRequest],
        plan: EmbeddingsRequest,
        texts: NDArray[Any],
        began: float,
    ) -> None:
        self.embeddings = embeddings
        self._request = request
        self._responder = responder
        self._texts = texts
        self._began = began
        served = embeddings.served
        names = [served.output, served.mask]
        self._plan = InferenceRequest(
            None, {}, (), 0, names, (True, True), plan.timeout, plan.priority
        )
        # texts of similar lengths run together with the least padding
        self._left = deque(sorted(range(len(texts)), key=lambda index: len(texts[index])))
        self._vectors: list[NDArray[Any]] = [_EMPTY] * len(texts)
        self._tokens = np.zeros(len(texts), np.int64)
        self._with_model: set[InferenceCall] = set()
        request.parts = self._with_model
        self._is_over = False

    def begin(self) -> None:
        """Submit the first texts; raise RequestError if one is refused, and then none is answered."""
        try:
            self._submit_next()
        except BaseException:
            self._stop()
            raise

    def _submit_next(self) -> None:
        while self._left and len(self._with_model) < self.embeddings.most_at_once:
            index = self._left.popleft()
            try:
                self._submit(index)
            except RequestError as error:
                if not self._may_wait(error):
                    raise
                self._left.appendleft(index)
                return

    def _may_wait(self, error: RequestError) -> bool:
        """Whether a refused text can be submitted again: once another one has run, there may be room."""
        return error.status == 503 and bool(self._with_model)

    def _submit(self, index: int) -> None:
        embeddings, served = self.embeddings, self.embeddings.served
        call = InferenceCall(copy=self._request.copy)
        text = _Text(self, call, index)
        feeds = {served.text: np.full(served.shape, self._texts[index], object)}
        waited = time.monotonic() - self._began
        self._with_model.add(call)
        try:
            embeddings.steps.submit(
                call,
                self._plan,
                feeds,
                text,
                waited=waited,
                check=served.check,
                refuse=partial(self.refuse, text),
            )
        except BaseException:
            self.leave(text)
            raise

    def take(self, text: "_Text", job: Job) -> None:
        """Pool the outputs of a text; a thread does it if they are large."""
        arrays = job.arrays
        assert arrays is not None  # noqa: S101 - it succeeded
        pool = partial(self.embeddings.served.pool, *arrays)
        if arrays[0].size <= _LARGE:
            self._keep(text, job, pool())
            return
        answering = self.embeddings.answering

        def keep(done: asyncio.Future[NDArray[Any]]) -> None:
            done.exception()  # retrieved, even if the client has left
            answering.results.answer_later(
                text.call,
                text,
                lambda: self._keep(text, job, done.result()),
                "pooling an embedding",
            )

        answering.codec_thread.submit(text.call, pool, keep)

    def _keep(self, text: "_Text", job: Job, vectors: NDArray[Any]) -> None:
        if self._is_over:
            self.leave(text)
            return
        arrays = job.arrays
        assert arrays is not None  # noqa: S101 - as above
        values, mask = arrays
        index = text.index
        self._vectors[index], self._tokens[index] = vectors[0], np.count_nonzero(mask)
        self._note_times(job)
        embeddings = self.embeddings
        if self._request.of_client and embeddings.answering.copies.chooses():
            embeddings.copy(self._texts[index], values)
        self.leave(text)
        if self._left:
            self._submit_next()
        elif not self._with_model:
            self._answer(job)

    def _answer(self, job: Job) -> None:
        """Answer the request, with the last of its jobs."""
        job.arrays = [np.stack(self._vectors), self._tokens]
        try:
            self._responder.succeed(job)
        except RequestError as error:
            self._responder.fail(error)

    def _note_times(self, job: Job) -> None:
        """Note when the first text was queued and run, and when the last one so far was done."""
        context = self._request.context
        if context is not None:
            context.queued = context.queued or job.queued
            context.started = context.started or job.started
            context.finished = max(context.finished, job.finished)

    def refuse(self, text: "_Text", error: RequestError) -> None:
        """Answer the request with the error of a text that the steps before the model refuse."""
        self.embeddings.inference.note_refusal(text.call, error)
        self.fail(text, error)

    def fail(self, text: "_Text", error: RequestError) -> None:
        """Answer the request with the error of a text, unless it may be submitted again; the others are not needed."""
        self.leave(text)
        if self._is_over or self._request.abandoned:
            return
        if self._may_wait(error):
            self._left.appendleft(text.index)
            return
        self._stop()
        self._responder.fail(self._of_text(error, text.index))

    def abort(self, text: "_Text") -> None:
        """Close the connection, which could not be answered."""
        self.leave(text)
        self._stop()
        self._responder.abort()

    def leave(self, text: "_Text") -> None:
        """Forget a text that is no longer with the model; idempotent."""
        self._with_model.discard(text.call)
        self.embeddings.inflight.release(text.call)
        if self._request.abandoned and not self._with_model:
            self._responder.release()

    def _stop(self) -> None:
        self._is_over = True
        self._left.clear()
        for call in self._with_model:
            call.abandoned = True

    def _of_text(self, error: RequestError, index: int) -> RequestError:
        """Return the error with the text that has it, if it is the text's."""
        if error.status != 400 or len(self._texts) == 1:
            return error
        return RequestError(400, f"{TEXTS}[{index}]: {error.message}")


@dataclass(slots=True, eq=False)
class _Text:
    """The `Responder` of one text."""

    _texts: _Texts
    call: InferenceCall
    index: int

    def succeed(self, job: Job) -> None:
        self._texts.take(self, job)

    def fail(self, error: RequestError) -> None:
        self._texts.fail(self, error)

    def release(self) -> None:
        self._texts.leave(self)

    def abort(self) -> None:
        self._texts.abort(self)
