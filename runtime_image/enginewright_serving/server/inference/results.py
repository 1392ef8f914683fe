"""The results of submitted requests: outputs, errors and expiry; in the event loop only."""

import time
from collections.abc import Callable
from functools import partial

from enginewright_runtime.core.request_errors import RequestError

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.inference.job import Job, JobState, Responder
from enginewright_serving.server.inference.request_failures import (
    busy,
    describe_failed_run,
    report_unexpected,
)
from enginewright_serving.server.inference.run_errors import Fault
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.watchdog import Watchdog
from enginewright_serving.transport.call import InferenceCall


class InferenceResults:
    """Answers the requests of one model, and measures their runs; the transport counts how they end."""

    def __init__(self, metrics: figures.Metrics, request_seconds: float) -> None:
        """Create it; a request without a timeout may wait for `request_seconds`."""
        self._metrics = metrics
        self._request_seconds = request_seconds
        # takes jobs that have run, and calls `answer` in the end
        self.respond: Callable[[Job], None] = self.answer
        self.waiting: dict[Job, None] = {}  # requests without a timeout, oldest first

    def observe_runs(self, watchdog: Watchdog, buckets: ComputeBuckets) -> None:
        """Report runs to the model's health and latencies; called before the first one."""
        self._watchdog = watchdog
        self._buckets = buckets

    # Jobs that a worker has returned.

    def finish(self, job: Job) -> None:
        """Answer a job that the model's worker has returned."""
        self._stop_timeout(job)
        if job.answered or not job.started:  # it may have expired just before it began
            if job.started and job.call.of_client:  # its run may have had others
                self._count_run(job, job.finished - job.started)
            self._expire_late(job)
            return
        context = job.call.context
        if context is not None:
            context.queued, context.started = job.queued, job.started
            context.finished = job.finished
        # a fault of the client was verified: known-valid inputs still ran
        self._watchdog.record(succeeded=job.error is None or job.fault is Fault.CLIENT)
        if job.call.of_client:
            self._observe(job)
        if job.call.abandoned:
            job.responder.release()
        else:
            self.respond(job)

    def _observe(self, job: Job) -> None:
        seconds = job.finished - job.started
        self._metrics.queue.observe(job.started - job.queued)
        self._metrics.compute.observe(seconds)
        self._count_run(job, seconds)
        # a run beside others takes longer than those that it would be compared with
        if job.error is None and job.batch and job.alone:
            self._buckets.add(job.ran, seconds)
        else:
            self._buckets.add_untimed(job.feeds)

    def _count_run(self, job: Job, seconds: float) -> None:
        if job.batch:
            self._metrics.runs.add(job.batch, seconds, succeeded=job.error is None)

    # Answers.

    def answer(self, job: Job) -> None:
        """Answer a job with its outputs or its error."""
        if job.error is not None:
            job.responder.fail(describe_failed_run(job.error, job.fault))
        else:
            send = partial(job.responder.succeed, job)
            self._send(job.responder, send, "answering a request")

    def answer_later(
        self, call: InferenceCall, responder: Responder, send: Callable[[], None], doing: str
    ) -> None:
        """Continue an answer that was partly made in a thread, unless the client has left.

        `send` is like `Responder.succeed`; `doing` is the thread's work, for the message of an internal error.
        """
        if call.abandoned:
            responder.release()
        else:
            self._send(responder, send, doing)

    def _send(self, responder: Responder, send: Callable[[], None], doing: str) -> None:
        try:
            send()
        except RequestError as error:
            responder.fail(error)
        except Exception:  # noqa: BLE001 - an internal error fails one request, not the connection
            responder.fail(report_unexpected(doing))

    def refuse(self, job: Job, why: str) -> None:
        """Answer a job that a worker has given up."""
        self._stop_timeout(job)
        if job.is_dropped:
            self._expire_late(job)
            return
        if job.call.of_client:
            self._metrics.queue.observe(time.monotonic() - job.queued)
        job.answered = True
        self._fail_waiting(job, busy(why))
        job.responder.release()

    def _fail_waiting(self, job: Job, error: RequestError) -> None:
        try:
            job.responder.fail(error)
        except Exception:  # noqa: BLE001 - an internal error ends one connection, not the others
            job.abort()

    # Expiry.

    def expire_waiting(self, now: float) -> None:
        """Answer requests without a timeout that have waited too long."""
        for job in [job for job in self.waiting if job.is_late(now)]:
            self.expire(job)

    def expire(self, job: Job) -> None:
        """Answer a job whose timeout has expired, unless it is running, or has been."""
        job.timer = None
        self.waiting.pop(job, None)
        if job.answered or job.state >= JobState.RUNNING:
            return
        waits = job.withdraw()
        self._answer_expired(job)
        if waits:
            job.responder.release()  # else once a thread has returned it

    def _answer_expired(self, job: Job) -> None:
        job.answered = True
        call = job.call
        if call.of_client:
            self._metrics.queue.observe(time.monotonic() - job.queued)
        if call.abandoned:
            return
        if job.plan.timeout:
            limit = f"its timeout of {job.plan.timeout:g} s"
        else:
            limit = f"{self._request_seconds:g} s (spec.serving.requestTimeout)"
        expired = RequestError(504, f"the request waited longer than {limit}")
        self._fail_waiting(job, expired)

    def disown(self, job: Job) -> None:
        """Never answer a job that could not be submitted: its request is refused, and its connection may have the next one."""
        job.answered = True
        self._stop_timeout(job)

    def _stop_timeout(self, job: Job) -> None:
        if job.timer is not None:
            job.timer.cancel()
        self.waiting.pop(job, None)

    def _expire_late(self, job: Job) -> None:
        if not job.is_dropped:
            self._answer_expired(job)
        job.responder.release()
