"""Polls the server, in one loop for each kind of poll, for as long as the sidecar runs.

An exception does not end a loop, and results that are not renewed expire to unknown.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from enginewright_contract.execution import Execution
from enginewright_contract.measurements import ServerMeasurements
from enginewright_contract.reasons import NOTHING_RUNS, Reason
from enginewright_contract.task import LIVE_PATH, READY_PATH
from enginewright_contract.verdict import Check, CheckVerdict
from enginewright_runtime.core.paths import Paths
from pydantic import ValidationError

from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.probe_token import HEADER, read_or_create
from enginewright_serving.sidecar import settings
from enginewright_serving.sidecar.answers import AnswerComparison
from enginewright_serving.sidecar.client import (
    RESPONSE_BYTES,
    Client,
    ServerResponse,
    UnreachableError,
)
from enginewright_serving.sidecar.errors import response_counts
from enginewright_serving.sidecar.golden import GoldenProbe
from enginewright_serving.sidecar.inferences import Inferences
from enginewright_serving.sidecar.json_tensors import JSON_BYTES
from enginewright_serving.sidecar.pod_state import OF_EXECUTION, PodState
from enginewright_serving.sidecar.probe_schedule import ProbeSchedule
from enginewright_serving.sidecar.protocol import BINARY_EXTENSION
from enginewright_serving.sidecar.readiness import seconds_left
from enginewright_serving.sidecar.samples import GoldenSamples
from enginewright_serving.sidecar.shadow import Shadow

_log: Final = logging.getLogger(__name__)
_EXPOSITION_BYTES: Final = 8 * 1024 * 1024  # larger metrics of the server are not passed on
_LARGE_BYTES: Final = 16 * 1024 * 1024  # of outputs, which do not fit beside a canary's answers
_SCRAPE_SECONDS: Final = 1.0  # timeout of the server's metrics and measurements
_MEMORY_INTERVAL: Final = 2.0  # seconds between samples of the server's memory
_PROBE_SECONDS: Final = 30.0  # timeout of a golden inference
_HUNG_SECONDS: Final = 60.0  # beyond the longest regular interval of a loop


class Monitor:
    """The loops of one sidecar."""

    def __init__(
        self, pod_state: PodState, samples: GoldenSamples, paths: Paths, server_port: int
    ) -> None:
        self._pod_state = pod_state
        self._release = paths.release
        self._clients: list[Client] = []

        def connect(response_bytes: int = RESPONSE_BYTES) -> Client:
            client = Client(server_port, response_bytes=response_bytes, tls=pod_state.task.tls)
            self._clients.append(client)
            return client

        self._health, self._queries, self._scrapes = connect(), connect(), connect()
        self._measuring, copies = connect(), connect()
        inferring = connect(max(JSON_BYTES, samples.largest_outputs + RESPONSE_BYTES))
        model = pod_state.task.model
        self._execution_path = f"/v2/models/{model}/execution"
        self._measurements_path = f"/v2/models/{model}/measurements"
        token = read_or_create(paths.probe_token)
        self._own = f"{HEADER}: {token}\r\n" if token else ""
        self._inferences = Inferences(inferring, model, _PROBE_SECONDS, self._own)
        self._probe = GoldenProbe(self._inferences, samples, pod_state.manifest)
        key = pod_state.task.stable_key
        self._answers = (
            None
            if key is None
            else AnswerComparison(
                self._inferences, pod_state.manifest, samples.largest_outputs, paths.stable, key
            )
        )
        is_large = samples.largest_outputs > _LARGE_BYTES
        self._memory = asyncio.Lock() if is_large else contextlib.nullcontext()
        self._shadow = Shadow(
            copies,
            model,
            self._own,
            samples,
            pod_state.manifest,
            paths.shadow,
            self._memory,
            tokens=MountedSecret(paths.tokens),
        )
        self._schedule = ProbeSchedule(samples.names)
        self._golden_began = float("-inf")
        self._serving = asyncio.Event()
        self._due = dict.fromkeys(OF_EXECUTION, 0.0)
        self._logged: dict[Check, CheckVerdict] = {}
        self._logged_ready = False
        self._logged_left_out: set[str] = set()
        self._beats: dict[str, float] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, act in {
                    "server": self._poll_health,
                    "execution": self._poll_execution,
                    "golden": self._run_golden,
                    "errors": self._poll_errors,
                    "release": self._read_release,
                    "measurements": self._sample,
                    "shadow": self._compare_shadow,
                }.items():
                    group.create_task(self._loop(name, act), name=name)
        finally:
            self._shadow.close()
            for client in self._clients:
                client.close()

    @property
    def alive(self) -> bool:
        """Whether all loops make progress."""
        deferred = settings.STALE_INTERVALS * settings.SLOWEST_INTERVAL
        longest = deferred + _PROBE_SECONDS + _HUNG_SECONDS
        return all(time.monotonic() - beat < longest for beat in self._beats.values())

    async def scrape(self) -> bytes:
        """Return the server's metrics, empty if it has none or does not respond in time."""
        with contextlib.suppress(UnreachableError):
            response = await self._scrapes.get("/metrics", _SCRAPE_SECONDS, self._own)
            plain = response.headers.get(b"content-type", b"").startswith(b"text/plain")
            if response.status == 200 and plain and len(response.body) <= _EXPOSITION_BYTES:
                return bytes(response.body)
        return b""

    async def measure(self, *, sample: bool = False) -> None:
        """Read the server's measurements; `sample`: for the histories too."""
        with contextlib.suppress(UnreachableError, ValidationError):
            response = await self._measuring.get(
                self._measurements_path, _SCRAPE_SECONDS, self._own
            )
            if response.status == 200:
                reported = ServerMeasurements.model_validate_json(response.body)
                self._pod_state.measurements.server(reported, time.time(), sample=sample)

    async def _sample(self) -> float:
        began = time.monotonic()
        await self.measure(sample=True)
        return _rest(_MEMORY_INTERVAL, began)

    async def _loop(self, name: str, act: Callable[[], Awaitable[float]]) -> None:
        while True:
            self._beats[name] = time.monotonic()
            try:
                pause = await act()
            except Exception:  # noqa: BLE001 - an error in one check must not end the others
                _log.exception("unexpected error while checking: %s", name)
                pause = settings.SLOWEST_INTERVAL
            await asyncio.sleep(pause)

    async def _poll_health(self) -> float:
        began = time.monotonic()
        try:
            live = await self._get(self._health, LIVE_PATH)
            ready = await self._get(self._health, READY_PATH)
        except UnreachableError as error:
            self._pod_state.server_missed(f"the server {error}", unreachable=error.unreachable)
        else:
            reason, why = _error_of(ready if live.status == 200 else live)
            self._pod_state.server(
                live=live.status == 200, ready=ready.status == 200, reason=reason, why=why
            )
        if not self._pod_state.serving:
            if self._pod_state.fault is None:  # otherwise golden inferences detect the recovery
                self._serving.clear()
        elif not self._serving.is_set():
            with contextlib.suppress(UnreachableError):  # retried at the next poll
                self._inferences.binary = await self._supports_binary()
                self._serving.set()
        self._log_changes()
        return _rest(_choose_interval(Check.SERVER, confirmed=self._pod_state.serving), began)

    async def _supports_binary(self) -> bool:
        response = await self._get(self._health, "/v2")
        try:
            return BINARY_EXTENSION in orjson.loads(response.body).get("extensions", ())
        except (ValueError, TypeError, AttributeError):
            return False

    async def _read_release(self) -> float:
        try:
            annotation = self._release.read_text()
        except OSError:  # it does not exist outside a pod
            annotation = ""
        self._pod_state.release(seconds_left(annotation, time.time()))
        return settings.RELEASE_INTERVAL

    async def _poll_execution(self) -> float:
        began = time.monotonic()
        due = [check for check, at in self._due.items() if at <= began]
        if due:
            succeeded = await self._execution(due)
            for check in due:
                # after a failure, retry at the shortest interval
                retry = _choose_interval(Check.PLACEMENT, confirmed=self._pod_state.admitted)
                pause = settings.INTERVALS[check] if succeeded else retry
                self._due[check] = began + pause
        return max(0.0, min(self._due.values()) - time.monotonic())

    async def _execution(self, due: list[Check]) -> bool:
        """Poll the execution report; return False if it should be retried soon."""
        foreign = False
        try:
            response = await self._get(self._queries, self._execution_path)
            is_ok = response.status == 200
            reported = Execution.model_validate_json(response.body) if is_ok else None
        except UnreachableError as error:
            why = f"the server {error}"
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or "the document"
            why = f"the server's execution report is invalid: {where}"
        else:
            if reported is not None:
                self._pod_state.execution(reported, due)
                return True
            foreign = response.status == 404
            why = (
                "the server has no execution report: it is not Enginewright's server"
                if foreign
                else f"the server returned {response.status} for its execution report"
            )
        self._pod_state.execution_missed(why, due, foreign=foreign)
        return foreign

    async def _run_golden(self) -> float:
        """Run the next golden inference if it is due.

        That is checked at least once in the server check's interval, since the operator may ask for a higher
        rate, or the server restart.
        """
        try:
            async with asyncio.timeout(settings.INTERVALS[Check.SERVER]):
                await self._serving.wait()
        except TimeoutError:
            return 0.0
        began = time.monotonic()
        facts = self._pod_state.probe_facts
        rest = self._golden_began + self._schedule.pace(facts) - began
        if rest > 0:
            return min(rest, settings.INTERVALS[Check.SERVER])
        self._golden_began = began
        turn = self._schedule.next(facts, began)
        async with self._memory:
            padding = self._pod_state.padding
            result = await self._probe.run(turn.sample, turn.defer, turn.batch, padding)
        if result.unreachable:
            self._serving.clear()  # the health loop sets it again
        interval = self._schedule.interval(result, self._pod_state.probe_facts)
        self._pod_state.golden(result, interval)
        self._pod_state.measurements.golden(result, time.time())
        self._report_left_out()
        await self._compare_answers()
        return 0.0

    def _report_left_out(self) -> None:
        names = self._schedule.find_left_out(self._pod_state.probe_facts)
        self._pod_state.measurements.left_out = names
        for name in sorted(set(names) - self._logged_left_out):
            self._logged_left_out.add(name)
            why = "takes longer than requests on average: it runs only while there are none"
            _log.info("golden sample %r %s", name, why)

    async def _compare_answers(self) -> None:
        comparison = self._answers
        if comparison is None or comparison.result is not None or not self._pod_state.admitted:
            return
        # so that the next golden inference runs before the result of the last one expires
        pace = self._schedule.pace(self._pod_state.probe_facts)
        await comparison.step(pace, self._pod_state.restarts)
        self._pod_state.measurements.answers = comparison.result

    async def _compare_shadow(self) -> float:
        pause = await self._shadow.step()
        self._pod_state.measurements.shadow = self._shadow.result
        return pause

    async def _poll_errors(self) -> float:
        began = time.monotonic()
        try:
            response = await self._get(self._queries, "/metrics")
        except UnreachableError as error:
            self._pod_state.responses_missed(f"the server {error}")
        else:
            counts = response_counts(response.body) if response.status == 200 else None
            if counts is None:
                self._pod_state.responses_missed("the server does not count its responses")
            else:
                self._pod_state.responses(counts)
        return _rest(settings.INTERVALS[Check.ERRORS], began)

    async def _get(self, client: Client, path: str) -> ServerResponse:
        return await client.get(path, settings.REQUEST_SECONDS, self._own)

    def _log_changes(self) -> None:
        verdict = self._pod_state.verdict()
        for now in verdict.checks:
            before = self._logged.get(now.check)
            if before is None or before.state != now.state or before.reason != now.reason:
                self._logged[now.check] = now
                level = logging.WARNING if now.state == "failed" else logging.INFO
                _log.log(level, "check %s is %s: %s", now.check, now.state, now.message)
        if verdict.ready != self._logged_ready:
            self._logged_ready = verdict.ready
            _log.info("the pod is %s", "ready" if verdict.ready else "not ready")


def _error_of(response: ServerResponse) -> tuple[Reason | None, str]:
    """Return why the server's runs fail, as it reports, or (None, "") if they do not."""
    if response.status == 200:
        return None, ""
    try:
        document = orjson.loads(response.body)
        reason = Reason(document["reason"])
        return (reason, str(document["error"])) if reason in NOTHING_RUNS else (None, "")
    except (ValueError, TypeError, KeyError):
        return None, ""


def _choose_interval(check: Check, *, confirmed: bool) -> float:
    """Return the seconds between polls for a check: fewer while a pod waits for its result to become ready."""
    usual = settings.INTERVALS[check]
    return usual if confirmed else min(usual, settings.STARTING_INTERVAL)


def _rest(interval: float, began: float) -> float:
    return max(0.0, interval - (time.monotonic() - began))
