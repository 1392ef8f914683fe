"""The further server processes of a pod: the first one starts them, watches them and replaces them.

They are started with a new interpreter, since a process that has loaded native libraries must not fork.
Each has sockets of its own in the group of those that share the ports (SO_REUSEPORT, socket(7)). The first
process keeps them open: where a process ends, it accepts in its place, so that connections that the
kernel gave to the one that has ended are served, until another has proved its copy of the model.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.serve.server.acceptor import Acceptor
from enginewright_runtime.serve.server.application import start_listening
from enginewright_runtime.serve.server.batching import BatchLimits
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.processes import messages
from enginewright_runtime.serve.server.processes.channel import (
    Channel,
    ChannelClosedError,
    ProcessMessage,
)
from enginewright_runtime.serve.server.processes.child import end, how, not_proved, spawn
from enginewright_runtime.serve.server.processes.members import (
    Known,
    Member,
    Sockets,
    Surroundings,
    sum_known,
)
from enginewright_runtime.serve.server.refusals import as_failure
from enginewright_runtime.serve.server.settings import ServerSettings

_PAUSES: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each replacement in a row
_STABLE_SECONDS: Final = 60.0  # a process that lived longer is replaced at once
_MOST_UNPROVED: Final = 3  # replacements in a row that do not become ready, until the server ends
_OPENING_SECONDS: Final = 0.05  # interval at which processes hear whether all accept connections
_START_RATIO: Final = 10.0  # a process may take so many times as long as the first one to be ready,
_START_SECONDS: Final = 600.0  # and at least so long
_log: Final = logging.getLogger(__name__)


class Followers:
    """All processes but the first; for the event loop of the first."""

    def __init__(
        self,
        sockets: Sequence[Sockets],
        start: dict[str, Any],
        settings: ServerSettings,
        surroundings: Surroundings,
    ) -> None:
        """Create it without a process.

        Args:
            sockets: of each process, bound and not yet listening.
            start: what each gets to know, besides its index.
            settings: of each.
            surroundings: the first process.
        """
        self._members = [Member(index, each) for index, each in enumerate(sockets, 1)]
        self._start = start
        self._settings = settings
        self._surroundings = surroundings
        self._kill: dict[int, Callable[[], None]] = {}  # of each process that runs
        self._open = asyncio.Event()
        self._draining = False
        self._start_seconds = _START_SECONDS
        self.failure: asyncio.Future[StageFailure] = asyncio.get_running_loop().create_future()
        self.ended = Known()  # what those that have ended had counted

    async def prove(self, batches: BatchLimits, seconds: float) -> None:
        """Start all processes and wait until each has proved its copy of the model.

        Args:
            batches: what the first process has found out about batches.
            seconds: that it has taken to become ready.

        Raises:
            StageFailure: why one has not.
        """
        self._start |= {"batches": asdict(batches), "settings": asdict(self._settings)}
        self._start_seconds = max(_START_SECONDS, _START_RATIO * seconds)
        for each in self._members:
            each.task = asyncio.create_task(self._keep(each))
        proved = asyncio.gather(*(each.proved.wait() for each in self._members))
        await asyncio.wait((proved, self.failure), return_when=asyncio.FIRST_COMPLETED)
        if self.failure.done():
            proved.cancel()
            raise self.failure.result()

    def open(self) -> None:
        """Let all processes accept connections."""
        self._open.set()

    def begin_drain(self) -> None:
        """Let all processes finish what they do, and start no more."""
        self._draining = True
        for each in self._members:
            if each.channel is not None:
                each.channel.tell(ProcessMessage(messages.DRAIN))
            elif each.task is not None:
                each.task.cancel()
            for one in each.sockets:  # from now on they belong to the process that accepts on them
                one.close()

    async def drained(self, seconds: float) -> None:
        """Wait until all processes have ended, at most `seconds`."""
        if tasks := [each.task for each in self._members if each.task is not None]:
            await asyncio.wait(tasks, timeout=seconds)

    def kill(self) -> None:
        """End all processes at once."""
        for each in self._members:
            if each.task is not None:
                each.task.cancel()
        for kill in self._kill.values():
            kill()

    # What all processes together know.

    def why_not_ready(self) -> HealthProblem | None:
        """Return why one of the processes should receive no requests."""
        late = next((each for each in self._members if not each.accepts), None)
        if late is not None:
            return HealthProblem(f"server process {late.index + 1} does not accept connections yet")
        return next((each.problem for each in self._members if each.problem is not None), None)

    def why_not_live(self) -> None:
        """Return None: a process that does not work is replaced."""

    @property
    def known(self) -> list[Known]:
        """What the processes have reported, and those that have ended."""
        return [self.ended, *(each.known for each in self._members)]

    def dropped(self, index: int) -> int:
        """Return the copies of requests that one process is known to have dropped."""
        return self._members[index - 1].known.dropped

    @property
    def serving(self) -> list[int]:
        """The indices of the processes that serve."""
        return [each.index for each in self._members if each.channel is not None]

    async def refresh(self, kind: str, seconds: float) -> list[ProcessMessage]:
        """Ask all processes that serve; return the answers that arrive within `seconds`."""
        message = self._health(kind) if kind == messages.REPORT else ProcessMessage(kind)
        asked = [self.ask(index, message, seconds) for index in self.serving]
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]

    async def ask(
        self, index: int, message: ProcessMessage, seconds: float
    ) -> ProcessMessage | None:
        """Ask one process; None: it has not answered within `seconds`, or has ended."""
        member = self._members[index - 1]
        channel = member.channel
        if channel is None:
            return None
        with contextlib.suppress(TimeoutError, ChannelClosedError):
            answer = await channel.ask(message, seconds)
            if member.channel is channel:  # else what it has said is counted already
                member.learn(answer)
                return answer
        return None

    # One process after another.

    async def _keep(self, member: Member) -> None:
        """Run a process in a member's place, and another whenever it ends."""
        unproved = quick = 0
        while True:
            began = time.monotonic()
            try:
                await self._live(member)
                unproved = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, another one must be tried
                failure = as_failure(error)
                unproved += 1
                _log.error("%s", failure.message)
                if not self._open.is_set() or unproved == _MOST_UNPROVED:
                    if not self.failure.done():
                        self.failure.set_result(failure)
                    return
            quick = 0 if time.monotonic() - began > _STABLE_SECONDS else quick + 1
            if self._draining:
                return
            await asyncio.sleep(_PAUSES[min(max(quick - 1, 0), len(_PAUSES) - 1)])

    async def _live(self, member: Member) -> None:
        """Run one process until it ends.

        Raises:
            StageFailure: why it has not proved its copy of the model.
        """
        process, ours = spawn(member.index, member.sockets)
        self._kill[member.index] = process.kill
        channel = Channel(partial(self._take, member))
        is_proved = False
        try:
            await channel.open(ours)
            await self._prove(member, channel)
            is_proved = True
            member.proved.set()
            await self._open.wait()
            await self._watch(member, channel)
        except ChannelClosedError:
            pass  # it has ended
        finally:
            member.channel, member.problem = None, None
            self.ended, member.known = sum_known(self.ended, member.known), Known()
            channel.close()
            if self._open.is_set() and not member.stand_in and not self._draining:
                member.stand_in = self._stand_in(member)
            code = await end(process)
            del self._kill[member.index]
        if not is_proved:
            raise not_proved(member.index, code)
        if not self._draining:
            _log.error("server process %d %s; another one replaces it", member.index + 1, how(code))

    async def _prove(self, member: Member, channel: Channel) -> None:
        try:
            answer = await channel.ask(
                ProcessMessage(messages.START, self._start | {"index": member.index}),
                self._start_seconds,
            )
        except TimeoutError:
            raise StageFailure(
                Reason.TIMEOUT,
                f"server process {member.index + 1} has not loaded the model in {self._start_seconds:.0f} s",
                remedy="read the pod's log",
            ) from None
        if (failed := answer.fields["failed"]) is not None:
            raise StageFailure.of(Finding.model_validate(failed))

    async def _watch(self, member: Member, channel: Channel) -> None:
        """Let a process serve, and ask for its counts and health until it ends or must end."""
        member.channel = channel
        settings, number = self._settings, member.index + 1
        kind = messages.SERVE
        while True:
            try:
                answer = await channel.ask(self._health(kind), settings.process_seconds)
            except TimeoutError:
                _log.error(
                    "server process %d has not responded for %.3g s",
                    number,
                    settings.process_seconds,
                )
                return
            if kind == messages.SERVE:
                kind = messages.REPORT
                member.accepts = True
                self._surroundings.stop(member.stand_in)
                member.stand_in = ()
                continue
            member.learn(answer)
            if problem := messages.read_problem(answer.fields["live"]):
                _log.error("server process %d is not live: %s", number, problem.message)
                return
            is_open = all(each.accepts for each in self._members)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.sweep_seconds if is_open else _OPENING_SECONDS):
                    await channel.closed()
                    return

    def _health(self, kind: str) -> ProcessMessage:
        """Return a message that tells a process the pod's health."""
        pod = self._surroundings
        live, ready = map(messages.problem_fields, (pod.why_not_live(), pod.why_not_ready()))
        return ProcessMessage(kind, {"live": live, "ready": ready})

    async def _take(self, member: Member, message: ProcessMessage) -> ProcessMessage | None:
        if message.kind == messages.PROGRESS:
            if not self._open.is_set():
                state = message.fields["state"]
                self._surroundings.progress(f"server process {member.index + 1}: {state}")
            return None
        return await self._surroundings.answer(message)

    def _stand_in(self, member: Member) -> Sequence[Acceptor]:
        """Accept the connections of a process that has ended."""
        copies = [each.dup() for each in member.sockets]
        for each in copies:
            start_listening(each)
        return self._surroundings.accept(*copies)
