"""Asks the server, each question in its own time, and never gives up: a server may be down for long.

One loop for each thing that is asked. A loop outlives whatever goes wrong in it, and what it has not
found out lately becomes unknown by itself.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from enginewright.contract.execution import Execution
from enginewright.contract.reasons import NOTHING_RUNS, Reason
from enginewright.contract.verdict import Check, CheckVerdict
from pydantic import ValidationError

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve.probe_token import read_or_create
from enginewright_runtime.serve.sidecar.client import Answer, Client, UnreachableError
from enginewright_runtime.serve.sidecar.errors import answers
from enginewright_runtime.serve.sidecar.findings import OF_EXECUTION, Findings
from enginewright_runtime.serve.sidecar.golden import GoldenProbe
from enginewright_runtime.serve.sidecar.protocol import BINARY_EXTENSION
from enginewright_runtime.serve.sidecar.release import seconds_left
from enginewright_runtime.serve.sidecar.samples import Samples
from enginewright_runtime.serve.sidecar.settings import Settings
from enginewright_runtime.serve.sidecar.turns import Turns

_log: Final = logging.getLogger(__name__)
_EXPOSITION_BYTES: Final = 8 * 1024 * 1024  # of the server's metrics; more is not passed on
_HUNG_SECONDS: Final = 60.0  # beyond the longest pause of a loop


class Watch:
    """The loops of one sidecar."""

    def __init__(
        self,
        findings: Findings,
        samples: Samples,
        settings: Settings,
        paths: Paths,
        server_port: int,
    ) -> None:
        self._findings = findings
        self._release = paths.release
        self._settings = settings
        self._health = Client(server_port)
        self._questions = Client(server_port)
        self._scrapes = Client(server_port)
        inferences = Client(server_port, 2 * samples.largest_outputs)
        self._clients = (self._health, self._questions, self._scrapes, inferences)
        model = findings.task.model
        self._execution_path = f"/v2/models/{model}/execution"
        self._probe = GoldenProbe(
            inferences,
            model,
            samples,
            findings.manifest,
            settings.probe_seconds,
            read_or_create(paths.probe_token),
        )
        self._turns = Turns(samples.names, settings)
        self._serving = asyncio.Event()
        self._due = dict.fromkeys(OF_EXECUTION, 0.0)
        self._told: dict[Check, CheckVerdict] = {}
        self._told_ready = False
        self._beats: dict[str, float] = {}

    async def run(self) -> None:
        """Ask until cancelled."""
        interval = self._settings.intervals
        try:
            async with asyncio.TaskGroup() as group:
                for name, act in {
                    "server": lambda: self._ask_health(interval[Check.SERVER]),
                    "execution": self._ask_execution,
                    "golden": self._ask_golden,
                    "errors": lambda: self._ask_errors(interval[Check.ERRORS]),
                    "release": self._look_for_release,
                }.items():
                    group.create_task(self._loop(name, act), name=name)
        finally:
            for client in self._clients:
                client.close()

    @property
    def alive(self) -> bool:
        """Whether no loop hangs."""
        settings = self._settings
        deferred = settings.stale_intervals * settings.slowest_interval
        longest = deferred + settings.probe_seconds + _HUNG_SECONDS
        return all(time.monotonic() - beat < longest for beat in self._beats.values())

    async def scrape(self) -> bytes:
        """Return the server's metrics, nothing when it has none or does not answer soon."""
        with contextlib.suppress(UnreachableError):
            answer = await self._scrapes.get("/metrics", self._settings.scrape_seconds)
            plain = answer.headers.get(b"content-type", b"").startswith(b"text/plain")
            if answer.status == 200 and plain and len(answer.body) <= _EXPOSITION_BYTES:
                return bytes(answer.body)
        return b""

    async def _loop(self, name: str, act: Callable[[], Awaitable[float]]) -> None:
        """Run `act` for ever; it returns for how long to pause."""
        while True:
            self._beats[name] = time.monotonic()
            try:
                pause = await act()
            except Exception:  # noqa: BLE001 - a fault in one check must not end the others
                _log.exception("unexpected error while checking: %s", name)
                pause = self._settings.slowest_interval
            await asyncio.sleep(pause)

    async def _ask_health(self, interval: float) -> float:
        began = time.monotonic()
        try:
            live = await self._get(self._health, "/v2/health/live")
            ready = await self._get(self._health, "/v2/health/ready")
        except UnreachableError as error:
            self._findings.server_missed(f"the server {error}", gone=error.gone)
        else:
            reason, why = _said(ready if live.status == 200 else live)
            self._findings.server(
                live=live.status == 200, ready=ready.status == 200, reason=reason, why=why
            )
        if not self._findings.serving:
            if self._findings.fault is None:  # else golden inferences show when it is over
                self._serving.clear()
        elif not self._serving.is_set():
            with contextlib.suppress(UnreachableError):  # asked again next time
                self._probe.binary = await self._speaks_binary()
                self._serving.set()
        self._tell()
        return _rest(interval, began)

    async def _speaks_binary(self) -> bool:
        answer = await self._get(self._health, "/v2")
        try:
            return BINARY_EXTENSION in orjson.loads(answer.body).get("extensions", ())
        except (ValueError, TypeError, AttributeError):
            return False

    async def _look_for_release(self) -> float:
        try:
            annotation = self._release.read_text()
        except OSError:  # outside a pod there is none
            annotation = ""
        self._findings.release(seconds_left(annotation, time.time()))
        return self._settings.release_interval

    async def _ask_execution(self) -> float:
        began = time.monotonic()
        due = [check for check, at in self._due.items() if at <= began]
        if due:
            answered = await self._execution(due)
            for check in due:
                # what was not answered is asked again with the most frequent question
                pause = self._settings.intervals[check if answered else Check.PLACEMENT]
                self._due[check] = began + pause
        return max(0.0, min(self._due.values()) - time.monotonic())

    async def _execution(self, due: list[Check]) -> bool:
        """Ask how the server runs the model; return whether it has told, or cannot."""
        findings = self._findings
        try:
            answer = await self._get(self._questions, self._execution_path)
        except UnreachableError as error:
            findings.execution_missed(f"the server {error}", due, foreign=False)
            return False
        if answer.status == 404:
            why = "the server does not report how it runs the model: it is not Enginewright's"
            findings.execution_missed(why, due, foreign=True)
            return True
        if answer.status != 200:
            why = f"the server answers {answer.status} when asked how it runs the model"
            findings.execution_missed(why, due, foreign=False)
            return False
        try:
            told = Execution.model_validate_json(answer.body)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
            why = f"the server's words on how it runs the model are not understood: {where}"
            findings.execution_missed(why, due, foreign=False)
            return False
        findings.execution(told, due)
        return True

    async def _ask_golden(self) -> float:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.intervals[Check.SERVER]):
                await self._serving.wait()
        except TimeoutError:
            return 0.0
        turn = self._turns.next(self._findings.known, began)
        found = await self._probe.run(turn.sample, turn.defer)
        if found.gone:
            self._serving.clear()  # the loop that asks for health says when to go on
        interval = self._turns.interval(found, self._findings.known)
        self._findings.golden(found, interval)
        return _rest(interval, began)

    async def _ask_errors(self, interval: float) -> float:
        began = time.monotonic()
        try:
            answer = await self._get(self._questions, "/metrics")
        except UnreachableError as error:
            self._findings.answers_missed(f"the server {error}")
        else:
            counts = answers(answer.body) if answer.status == 200 else None
            if counts is None:
                self._findings.answers_missed("the server does not count its answers")
            else:
                self._findings.answers(counts)
        return _rest(interval, began)

    async def _get(self, client: Client, path: str) -> Answer:
        return await client.get(path, self._settings.request_seconds)

    def _tell(self) -> None:
        """Log what has changed."""
        verdict = self._findings.verdict()
        for found in verdict.checks:
            before = self._told.get(found.check)
            if before is None or before.state != found.state or before.reason != found.reason:
                self._told[found.check] = found
                level = logging.WARNING if found.state == "failed" else logging.INFO
                _log.log(level, "check %s is %s: %s", found.check, found.state, found.message)
        if verdict.ready != self._told_ready:
            self._told_ready = verdict.ready
            _log.info("the pod is %s", "ready" if verdict.ready else "not ready")


def _said(answer: Answer) -> tuple[Reason | None, str]:
    """Return what the server says is wrong with its runs; (None, "") when that is nothing."""
    if answer.status == 200:
        return None, ""
    try:
        document = orjson.loads(answer.body)
        reason = Reason(document["reason"])
        return (reason, str(document["error"])) if reason in NOTHING_RUNS else (None, "")
    except (ValueError, TypeError, KeyError):
        return None, ""


def _rest(interval: float, began: float) -> float:
    """Return what is left of `interval`, so that the work is part of it."""
    return max(0.0, interval - (time.monotonic() - began))
