"""One inference request on its way through the model."""

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from enginewright_runtime.serve.server.batching import elements_of, joinable, rows_of
from enginewright_runtime.serve.server.call import InferenceCall, Responder
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.priorities import HIGHEST, LOWEST

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from enginewright_runtime.serve.server.run_errors import Fault

_log: Final = logging.getLogger(__name__)


class RequestPlan(Protocol):
    """What a request asks for besides its inputs."""

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in the order of the answer."""

    @property
    def timeout(self) -> float:
        """Seconds that it may wait; 0: without limit."""

    @property
    def priority(self) -> int:
        """Its priority among requests; 1 is the highest."""

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run."""


class Job:
    """One request in the worker. Times are of `time.monotonic()`, 0: not yet."""

    __slots__ = (
        "__weakref__",
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
        "latest",
        "plan",
        "priority",
        "queued",
        "ran",
        "responder",
        "rows",
        "started",
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
        self.call = call
        self.plan = plan
        self.feeds = feeds
        self.responder = responder
        self.rows = 0 if call.reserved else rows_of(feeds)  # 0: it runs alone
        self.elements = elements_of(feeds)
        # probes are few, and must get through; copies are nobody's
        self.priority = HIGHEST if call.reserved else LOWEST if call.copy else plan.priority
        self.batch = 1  # requests in its run; 0: another one of its run has their number
        self.ran: Feeds = {}  # the inputs of its run
        self.alone = True  # no other run took place at the same time
        self.queued = now
        self.started = 0.0
        self.finished = 0.0
        self.deadline = now + plan.timeout if plan.timeout else 0.0
        # of a deferred job: the time until which it may wait for an idle moment; 0: not deferred
        self.latest = now + call.defer if call.reserved and call.defer else 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.answered = False  # with 504; the worker's result is discarded
        self.arrays: list[NDArray[Any]] | None = None
        self.error: Exception | None = None
        self.fault: Fault | None = None  # who caused `error`

    @property
    def is_dropped(self) -> bool:
        """Whether nobody waits for its result: it was answered, or its client is gone."""
        return self.answered or self.call.abandoned

    def is_late(self, now: float) -> bool:
        """Whether its timeout has passed."""
        return bool(self.deadline) and now > self.deadline

    def forget_run(self) -> None:
        """Be as before a run that has failed and is repeated: until then the request waits, and may expire."""
        self.started = self.finished = 0.0
        self.error = None
        self.ran = {}

    def abort(self) -> None:
        """Log the exception that is being handled, which answering it has raised, and end its connection."""
        _log.exception("unexpected error while answering a request")
        self.responder.abort()

    def joins(self, other: "Job") -> bool:
        """Whether it may run in one batch with `other`."""
        if not self.rows or not other.rows or self.priority != other.priority:
            return False  # a more urgent one would wait for the less urgent ones in its batch
        if self.plan is other.plan:  # the same JSON, so the same shapes
            return True
        return self.plan.outputs == other.plan.outputs and joinable(self.feeds, other.feeds)
