"""One inference request on its way through the model: its states, and who may change it in each."""

import logging
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.inference.batching import elements_of, joinable, rows_of
from enginewright_serving.server.inference.padding import MOST_WASTE, Padding, share_of_padding
from enginewright_serving.server.inference.request_failures import report_unexpected
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.priorities import HIGHEST, LOWEST
from enginewright_serving.transport.call import InferenceCall

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from enginewright_serving.server.inference.run_errors import Fault

_log: Final = logging.getLogger(__name__)


class RequestPlan(Protocol):
    """What a request asks for besides its inputs."""

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in the order of the answer."""

    @property
    def timeout(self) -> float:
        """Seconds that it may wait, 0 without limit."""

    @property
    def priority(self) -> int:
        """Its priority among requests; 1 is the highest."""

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run."""


class Holder(Protocol):
    """What a job was submitted to."""

    def withdraw(self, job: "Job") -> bool:
        """Take back a waiting job for the event loop; return False if a thread has it, or had it."""


class Responder(Protocol):
    """Sends the response to one request in its protocol; called in the event loop."""

    def succeed(self, job: "Job") -> None:
        """Encode and send the outputs of `job`, or have a thread encode or compress them.

        `InferenceResults.answer_later` then ends the request. Raises RequestError if they cannot be sent; nothing was.
        """

    def fail(self, error: RequestError) -> None:
        """Send `error`."""

    def release(self) -> None:
        """Release the memory that is charged for the request, which needs no answer; idempotent."""

    def abort(self) -> None:
        """Close the client's connection, as answering has failed, and release the request's memory."""


class JobState(IntEnum):
    """Where a job is. Each state has one owner, who alone changes the job and moves it on (`Job.move`)."""

    # the event loop's: not queued yet, or taken back from its queue (expired, evicted)
    RECEIVED = 0
    # without an owner: the holder of the queue's lock may read it, and claim it or take it back
    QUEUED = 1
    # of a thread of the model, or of the event loop for a run of its own (`Turns`)
    CLAIMED = 2
    # likewise: in `ModelRuns.attempt`, or after it while the cause of an error is looked for
    RUNNING = 3
    # the event loop's again: it has outputs, an error, or neither if it was not run
    DONE = 4


_NEXT: Final = (  # by state
    frozenset({JobState.QUEUED}),
    frozenset({JobState.RECEIVED, JobState.CLAIMED}),
    # back to the queue from a run in the event loop that failed, for a thread
    frozenset({JobState.RUNNING, JobState.DONE, JobState.QUEUED}),
    frozenset({JobState.DONE, JobState.CLAIMED}),  # back to be repeated alone
    frozenset[JobState](),
)


_UNEXPECTED: Final = RequestError(500, "unexpected error")


class JobStateError(Exception):
    """A job was to be moved to a state that does not follow its own."""


class Job:
    """One request in the worker. Times are of `time.monotonic()`, 0 until then.

    `state` says who owns it. Whether its client needs the result is another matter: `timer`, `answered` and
    `call.abandoned` are the event loop's in every state, and no thread writes them. The last two are only ever set,
    by expiry, eviction and a client that leaves; a thread that reads them in time does not run the job. So the
    inputs of a job that expires while a thread has it are kept until the thread returns it.
    """

    __slots__ = (
        "alone",
        "answered",
        "arrays",
        "batch",
        "call",
        "deadline",
        "elements",
        "error",
        "fault",
        "feeds",
        "finished",
        "holder",
        "latest",
        "plan",
        "priority",
        "queued",
        "ran",
        "responder",
        "rows",
        "started",
        "state",
        "timer",
    )

    def __init__(
        self,
        call: InferenceCall,
        plan: RequestPlan,
        feeds: Feeds,
        responder: Responder,
        now: float,
    ) -> None:
        self.state = JobState.RECEIVED
        self.call = call
        self.plan = plan
        self.feeds = feeds
        self.responder = responder
        self.rows = 0 if call.reserved else rows_of(feeds)  # 0 if it runs alone
        self.elements = elements_of(feeds)
        # probes are few, and must get through; no client waits for copies
        self.priority = HIGHEST if call.reserved else LOWEST if call.copy else plan.priority
        self.batch = 1  # requests in its run, 0 if another one of its run has their number
        self.ran: Feeds = {}  # the inputs of its run
        self.alone = True  # no other run took place at the same time
        self.queued = now
        self.started = 0.0
        self.finished = 0.0
        self.deadline = now + plan.timeout if plan.timeout else 0.0
        # of a deferred job: the time until which it may wait for an idle moment
        self.latest = now + call.defer if call.reserved and call.defer else 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.holder: Holder | None = None  # once it is submitted
        self.answered = False  # before its run; the worker's result is discarded
        self.arrays: list[NDArray[Any]] | None = None
        self.error: Exception | None = None
        self.fault: Fault | None = None  # who caused `error`

    def move(self, to: JobState) -> None:
        """Pass the job on; only its owner may. Raises JobStateError where `to` does not follow its state."""
        if to not in _NEXT[self.state]:
            raise JobStateError(f"a job that is {self.state.name} cannot be {to.name}")
        self.state = to

    @property
    def is_dropped(self) -> bool:
        """Whether its result is not needed: it was answered, or its client is gone."""
        return self.answered or self.call.abandoned

    def is_late(self, now: float) -> bool:
        """Whether its timeout has passed."""
        return bool(self.deadline) and now > self.deadline

    def withdraw(self) -> bool:
        """Take it out of the queue in which it waits; return False if it waits in none."""
        return self.holder is not None and self.holder.withdraw(self)

    def forget_run(self) -> None:
        """Reset what a failed run has left before it is repeated: until then the request may expire."""
        if self.state is JobState.RUNNING:
            self.move(JobState.CLAIMED)
        self.started = self.finished = 0.0
        self.error = None
        self.ran = {}

    def abort(self) -> None:
        """Log the current exception, raised while answering it, and end its connection."""
        _log.exception("unexpected error while answering a request")
        try:
            self.responder.abort()
        except Exception:  # noqa: BLE001 - as above: the others are answered
            _log.exception("unexpected error while closing the connection of a request")

    def joins(self, other: "Job", padding: Padding | None = None) -> bool:
        """Whether it may run in one batch with `other`."""
        if not self.rows or not other.rows or self.priority != other.priority:
            return False  # a more urgent one would wait for the less urgent ones in its batch
        if self.plan.outputs != other.plan.outputs:
            return False
        if padding is not None:  # which one more request may need: equal shapes are not enough
            return padding.is_joinable(self.feeds, other.feeds)
        # the same JSON has the same shapes
        return self.plan is other.plan or joinable(self.feeds, other.feeds)


def may_add(job: Job, jobs: Sequence[Job], padding: Padding | None) -> bool:
    """Whether `job` may run in one batch with `jobs`, of which then at most half is padding."""
    if not jobs[0].joins(job, padding):
        return False
    if padding is None:
        return True
    sizes = [(item.elements, item.rows) for item in (*jobs, job)]
    return share_of_padding(*zip(*sizes, strict=True)) <= MOST_WASTE


def fail_all(jobs: Iterable[Job], doing: str) -> None:
    """Fail those of `jobs` that have no result yet, which the caller owns, for the current exception; log it once.

    Those whose timeout has passed stay without a result: their clients read that they are late.
    """
    try:
        error = report_unexpected(doing)
    except Exception:  # noqa: BLE001 - such as no memory for the message: the jobs fail in any case
        error = _UNEXPECTED
    now = time.monotonic()
    for job in jobs:
        if job.arrays is None and job.error is None and (job.started or not job.is_late(now)):
            job.error = error
            job.started = job.started or now
            job.finished = now
            job.batch = 0  # it counts as no run
