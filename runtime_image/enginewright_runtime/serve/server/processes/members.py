"""The places of further server processes, and what is known of those that have them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginewright.contract.execution import ComputeBucket
from enginewright.contract.measurements import LatencySeries

from enginewright_runtime.serve.server.acceptor import Acceptor
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.processes import messages
from enginewright_runtime.serve.server.processes.channel import Channel, ProcessMessage
from enginewright_runtime.serve.server.processes.exposition import (
    Families,
    counted,
    sum_families,
)
from enginewright_runtime.serve.server.processes.totals import (
    merge_latencies,
    sum_buckets,
    sum_statistics,
)

Sockets = tuple[socket.socket, socket.socket]  # of HTTP and gRPC


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the first process does for the group."""

    accept: Callable[[socket.socket, socket.socket], Sequence[Acceptor]]  # in place of another
    stop: Callable[[Sequence[Acceptor]], None]
    why_not_live: Callable[[], HealthProblem | None]  # the pod
    why_not_ready: Callable[[], HealthProblem | None]  # likewise
    answer: Callable[[ProcessMessage], Awaitable[ProcessMessage]]  # a request about the whole pod
    progress: Callable[[str], None]


@dataclass(slots=True)
class Known:
    """What one process has reported, or all that have ended."""

    metrics: Families = field(default_factory=dict)
    statistics: dict[str, Any] | None = None  # of the model
    memory: int = 0  # resident bytes
    latencies: tuple[LatencySeries, ...] = ()
    buckets: tuple[ComputeBucket, ...] = ()
    outside: int = 0  # requests outside the shape profiles that ran
    dropped: int = 0  # copies of requests


@dataclass(slots=True)
class Member:
    """The place of one process, and the one that has it."""

    index: int  # from 1; 0 is the first process
    sockets: Sockets
    proved: asyncio.Event = field(default_factory=asyncio.Event)  # has ever been
    accepts: bool = False  # connections have ever been accepted in it
    channel: Channel | None = None  # of a process that serves
    problem: HealthProblem | None = None  # why it should receive no requests
    known: Known = field(default_factory=Known)
    stand_in: Sequence[Acceptor] = ()
    task: asyncio.Task[None] | None = None

    def learn(self, answer: ProcessMessage) -> None:
        """Keep what the process has answered."""
        known, fields = self.known, answer.fields
        if answer.kind == messages.REPORT:
            known.metrics, known.memory = fields["metrics"], fields["memory"]
            known.statistics = fields["statistics"]
            self.problem = messages.read_problem(fields["ready"])
        elif answer.kind == messages.MEASUREMENTS:
            known.latencies = tuple(LatencySeries.model_validate(e) for e in fields["latencies"])
        elif answer.kind == messages.EXECUTION:
            known.buckets = tuple(ComputeBucket.model_validate(e) for e in fields["buckets"])
            known.outside = fields["outside"]
        elif answer.kind == messages.COPY:
            known.dropped = fields["dropped"]


def sum_known(ended: Known, known: Known) -> Known:
    """Return what is known of processes that have ended, and of one more."""
    return Known(
        metrics=sum_families([ended.metrics, counted(known.metrics)]),
        statistics=sum_statistics(
            [each for each in (ended.statistics, known.statistics) if each is not None]
        ),
        memory=0,
        latencies=merge_latencies([ended.latencies, known.latencies]),
        buckets=sum_buckets([ended.buckets, known.buckets]),
        outside=ended.outside + known.outside,
        dropped=ended.dropped + known.dropped,
    )
