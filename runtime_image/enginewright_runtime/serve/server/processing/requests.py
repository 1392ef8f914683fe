"""Requests of a model with steps: before > the model's queue > after, then the answer.

Runs in the event loop but for the steps themselves. The sidecar's own requests do not come here: they carry
the inputs of the model, whose answers and latency they verify.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

import enginewright_runtime.serve.server.metrics as figures
from enginewright_runtime.serve.server.call import InferenceCall, Responder
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.inference import InferenceService
from enginewright_runtime.serve.server.inflight import InFlight
from enginewright_runtime.serve.server.job import Job, RequestPlan
from enginewright_runtime.serve.server.processing.pool import StepPool
from enginewright_runtime.serve.server.processing.served import ServedSteps, StepRoute
from enginewright_runtime.serve.server.request_failures import busy, unexpected
from enginewright_runtime.serve.server.settings import WAITING_COPIES
from enginewright_runtime.session.processing.chain import label
from enginewright_runtime.session.processing.frames import held_bytes
from enginewright_runtime.session.processing.images import NotAnImageError, image_size
from enginewright_runtime.session.processing.process import Cause, StepFailedError, StepProcess
from enginewright_runtime.session.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.signature import Signature

_log: Final = logging.getLogger(__name__)
_SAMPLE_BYTES: Final = 3  # of a decoded pixel
_BEFORE: Final = "steps before the model"
_AFTER: Final = "steps after the model"


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What requests may use."""

    waiting: int  # for the steps
    seconds: float  # that the steps before or after the model may take
    wait_seconds: float  # of a request without a timeout, for the steps; 0: any time


@dataclass(frozen=True, slots=True)
class _ModelPlan:
    """What a request asks of the model itself (`RequestPlan`)."""

    outputs: list[str]
    timeout: float
    asked: RequestPlan  # by the client
    feeds: Feeds  # of the client
    values: Feeds  # for the steps after the model
    route: StepRoute

    @property
    def priority(self) -> int:
        """Its priority among requests."""
        return self.asked.priority

    @property
    def outside(self) -> bool:
        """Whether its sizes are outside the shape profiles: those that steps make are refused then."""
        return False

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run: not known, the steps decide the shapes."""
        return False


class ChainedRequests:
    """Takes decoded requests of clients instead of the model."""

    def __init__(
        self,
        steps: ServedSteps,
        inference: InferenceService,
        inflight: InFlight,
        metrics: figures.Metrics,
        limits: StepLimits,
    ) -> None:
        self._steps = steps
        self._pool = StepPool(steps.processes)
        self._inference = inference
        self._inflight = inflight
        self._metrics = metrics
        self._limits = limits
        # one request never takes all that may be in flight
        self._most_bytes = inflight.account.limit // 2  # of what the steps before the model produce
        self._most_pixels = min(steps.most_pixels, self._most_bytes // _SAMPLE_BYTES)

    def submit(
        self,
        call: InferenceCall,
        plan: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        *,
        waited: float = 0.0,
        refuse: Callable[[RequestError], None],
    ) -> None:
        """Run the steps before the model, then queue the request.

        Args:
            call: the request.
            plan: what it asks for, of the chain.
            feeds: its inputs, of the chain.
            responder: sends what becomes of it.
            waited: seconds of its timeout that have passed.
            refuse: takes the error if it does not reach the model.

        Raises:
            RequestError: 503, too many wait; 400, an image is too large, or none.
        """
        waiting = self._pool.waiting
        if waiting >= self._limits.waiting or (call.copy and waiting > WAITING_COPIES):
            raise busy(f"{waiting} requests wait for the steps of spec.processing")
        self._check_images(call, feeds)
        now = time.monotonic()
        wait = plan.timeout - waited if plan.timeout else self._limits.wait_seconds
        self._pool.submit(
            call,
            partial(self._before, feeds),
            partial(self._prepared, call, plan, feeds, responder, waited, now, refuse),
            deadline=now + wait if wait else 0.0,
        )

    def _check_images(self, call: InferenceCall, feeds: Feeds) -> None:
        """Count what images take once they are decoded, or refuse them."""
        total = 0
        for name in self._steps.images:
            try:
                width, height = image_size(feeds[name].reshape(-1).view(np.uint8).data)
            except NotAnImageError as error:
                raise RequestError(400, f"input {name!r} is not an image: {error}") from None
            if width * height > self._most_pixels:
                raise RequestError(
                    400,
                    f"input {name!r}: the image has {width} x {height} pixels, more than"
                    f" {self._most_pixels:,}",
                )
            total += width * height * _SAMPLE_BYTES
        if total:
            self._inflight.hold(call, call.accounted + total)

    # In a thread.

    def _before(self, feeds: Feeds, process: StepProcess) -> tuple[Feeds, Feeds]:
        """Return the model's inputs, and what the steps before it produce."""
        steps = self._steps
        produced: Feeds = {}
        if steps.before:
            given = {name: feeds[name] for name in steps.before_inputs}
            try:
                produced = process.run(
                    steps.before,
                    given,
                    steps.before_outputs,
                    self._limits.seconds,
                    self._most_bytes,
                )
            except StepFailedError as error:
                raise _failed(error, _BEFORE, 400) from None
        values = feeds | produced
        own = {name: values[name] for name in steps.model.inputs}
        _check(steps.model, own, produced)
        return own, produced

    def _after(self, plan: _ModelPlan, values: Feeds, process: StepProcess) -> Feeds:
        steps = self._steps
        try:
            return process.run(
                steps.after,
                values,
                plan.route.after_outputs,
                self._limits.seconds,
                self._inflight.account.limit,
            )
        except StepFailedError as error:
            raise _failed(error, _AFTER, 500) from None

    # In the event loop.

    def _prepared(
        self,
        call: InferenceCall,
        asked: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        waited: float,
        began: float,
        refuse: Callable[[RequestError], None],
        done: asyncio.Future[tuple[Feeds, Feeds]],
    ) -> None:
        try:
            own, produced = done.result()
            seconds = time.monotonic() - began
            if call.of_client:
                self._metrics.steps[figures.PREPROCESS].observe(seconds)
            self._inflight.hold(call, call.accounted + held_bytes(produced.values()))
            self._inference.check_queue(call)
            route = self._steps.route(asked.outputs)
            after = self._steps.after_inputs if route.after_outputs else ()
            values = feeds | produced
            kept = {name: values[name] for name in after if name in values}
            plan = _ModelPlan(route.model_outputs, asked.timeout, asked, feeds, kept, route)
            self._inference.submit(call, plan, own, responder, waited=waited + seconds)
        except RequestError as error:
            refusal = error.detached()
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            refusal = unexpected("running the steps before the model")
        else:
            return
        refuse(refusal)

    def respond(self, job: Job) -> None:
        """Run the steps after the model on the outputs of `job`, then answer it."""
        plan = job.plan
        if job.error is not None or not isinstance(plan, _ModelPlan):
            self._inference.answer(job)
            return
        assert job.arrays is not None  # noqa: S101 - it succeeded
        given = dict(zip(plan.outputs, job.arrays, strict=True))
        if not plan.route.after_outputs:
            self._answer(job, plan, given)
            return
        values = plan.values | {
            name: array for name, array in given.items() if name in self._steps.after_inputs
        }
        self._pool.submit(
            job.call,
            partial(self._after, plan, values),
            partial(self._processed, job, plan, given, time.monotonic()),
        )

    def _processed(
        self,
        job: Job,
        plan: _ModelPlan,
        given: Feeds,
        began: float,
        done: asyncio.Future[Feeds],
    ) -> None:
        if job.call.abandoned:
            done.exception()
            self._inference.give_up(job)
            return
        try:
            arrays = given | done.result()
        except RequestError as error:
            job.error = error
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            job.error = unexpected("running the steps after the model")
        else:
            if job.call.of_client:
                self._metrics.steps[figures.POSTPROCESS].observe(time.monotonic() - began)
            self._answer(job, plan, arrays)
            return
        self._inference.answer(job)

    def _answer(self, job: Job, plan: _ModelPlan, arrays: Feeds) -> None:
        job.arrays = [arrays[name] for name in plan.asked.outputs]
        job.feeds = plan.feeds
        self._inference.answer(job)


def _check(model: Signature, own: Feeds, produced: Feeds) -> None:
    """Refuse inputs from steps that do not fit the model.

    Raises:
        RequestError: 400.
    """
    try:
        for name, tensor in model.inputs.items():
            if name in produced:
                tensor.count(list(own[name].shape))
                if tensor.values is not None:
                    tensor.check_values(own[name])
        model.check_together({name: array.shape for name, array in own.items()})
    except OutOfProfileError as error:
        raise OutOfProfileError(_of_steps(error)) from None
    except RequestError as error:
        raise RequestError(error.status, _of_steps(error)) from None


def _of_steps(error: RequestError) -> str:
    return f"after the steps before the model, {error.message}"


def _failed(error: StepFailedError, which: str, status: int) -> RequestError:
    """Return what a client is shown; `status`: of values that a step refuses."""
    where = f"step {label(error.step)}" if error.step else f"one of the {which}"
    if error.cause is Cause.VALUES:
        return RequestError(status, f"{where} failed on these values: {error.message}")
    if error.cause is Cause.MEMORY:
        return RequestError(status, f"{where} needs too much memory for these values")
    _log.warning("%s: %s; the process is restarted", where, error.message)
    if error.cause is Cause.TIME:
        return RequestError(504, f"{where}: {error.message}")
    return RequestError(status, f"{where} failed on these values: its library ended the process")
