"""Checks models: in the order given, as many at once as CPUs and memory allow.

If CPUs are left, the Jobs of one model run at once too.
A model that cannot be checked is reported and does not stop the others. After a signal, the command
waits until everything in progress has ended its processes and removed its folders.
"""

import errno
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime

from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright_cli.preflight.cache import ResultCache
from enginewright_cli.preflight.manifest import write_manifest
from enginewright_cli.preflight.memory import Memory, independent_jobs
from enginewright_cli.preflight.outputs import FileMessage, Outputs
from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.result import Result, TargetResult, judge_failure, make_found
from enginewright_cli.preflight.stages import InstallationError, Stages
from enginewright_cli.preflight.stopping import Stop, Stopped


class Watcher:
    """Receives the progress of each model, from any thread; ignores it by default."""

    def on_started(self, source: str) -> None:
        """The check of a model starts."""

    def stage(self, source: str, target: str, stage: str) -> None:
        """A stage of a target's Job starts."""

    def on_ended(self, result: Result) -> None:
        """The check of a model has ended."""


@dataclass(frozen=True)
class RunSettings:
    """What the models of one run have in common."""

    held: ImageFacts
    installed: str  # digest of what is installed
    cache: ResultCache | None
    outputs: Outputs
    jobs: int | None  # maximum number of models at once; by default the number of CPUs
    stages: Stages
    stop: Stop
    job_seconds: float  # time limit for the stages of one Job


def check_all(
    requests: Sequence[PreflightRequest], settings: RunSettings, watcher: Watcher
) -> tuple[list[Result], list[FileMessage]]:
    """Check all models; return the results in the order given, and messages about written files. Raises Stopped."""
    jobs = min(settings.jobs or _cpus(), len(requests))
    each_at_once = max(1, _cpus() // jobs)
    memory = Memory()
    waiting = list(range(len(requests)))
    running: dict[Future[tuple[Result, list[FileMessage]]], int] = {}
    ended: dict[int, tuple[Result, list[FileMessage]]] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        while waiting or running:
            while waiting and len(running) < jobs and not settings.stop.is_set():
                request = requests[waiting[0]]
                at_once = memory.reserve(
                    waiting[0], request, min(each_at_once, independent_jobs(request))
                )
                if not at_once:
                    break
                number = waiting.pop(0)
                running[pool.submit(_one, request, settings, watcher, at_once)] = number
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                memory.release(number)
                if future.exception() is None:
                    ended[number] = future.result()
                elif not isinstance(future.exception(), Stopped):
                    settings.stop.set()  # a bug: end the others, and raise it
                    future.result()
    if len(ended) < len(requests):
        raise Stopped
    results = [ended[number][0] for number in range(len(requests))]
    return results, [message for number in range(len(requests)) for message in ended[number][1]]


def _one(
    request: PreflightRequest, settings: RunSettings, watcher: Watcher, at_once: int
) -> tuple[Result, list[FileMessage]]:
    watcher.on_started(request.shown)
    # a cached result does not contain the model to write
    if settings.cache and settings.outputs.fix is None:
        earlier = settings.cache.result(request, settings.held, settings.installed)
        if earlier:
            watcher.on_ended(earlier)
            return _add_manifest(request, earlier), []
    messages: list[FileMessage] = []

    def progress(target: str, stage: str) -> None:
        watcher.stage(request.shown, target, stage)

    try:
        settings.stages.start()
        # while the fork server starts
        from enginewright_cli.preflight.check import check  # noqa: PLC0415 - loaded lazily
        from enginewright_cli.preflight.workspace import workspace  # noqa: PLC0415 - likewise

        with workspace(settings.stages, settings.stop, settings.job_seconds) as place:
            result = check(request, place, settings.held, progress, at_once).model_copy(
                update={"checked_at": datetime.now(UTC).replace(microsecond=0)}
            )
            messages = settings.outputs.save_model(
                result, lambda key: place.artifact("prepared", key)
            )
            if settings.cache:
                settings.cache.keep(
                    request, settings.held, settings.installed, result, place.list_fetched()
                )
    except InstallationError as error:
        cause = request.name_local_files(str(error))
        result = _make_unknown(request, Reason.INTERNAL_ERROR, cause)
    except OSError as error:
        result = _make_unknown(request, _reason(error), error_text(error))
    watcher.on_ended(result)
    return _add_manifest(request, result), messages


def _add_manifest(request: PreflightRequest, result: Result) -> Result:
    return result.model_copy(update={"manifest": write_manifest(request, result)})


def _make_unknown(request: PreflightRequest, reason: Reason, cause: str) -> Result:
    names = tuple(target.name for target in request.targets)
    finding = make_found(Finding(reason=reason, cause=cause), "preflight", names)
    verdict = judge_failure(reason)
    return Result(
        verdict=verdict,
        source=request.shown,
        findings=(finding,),
        targets={
            target.name: TargetResult(
                verdict=verdict, backend=target.backend, reason=reason, message=cause
            )
            for target in request.targets
        },
    )


def _reason(error: OSError) -> Reason:
    from enginewright_runtime.core.disk import is_full  # noqa: PLC0415 - loaded lazily

    if is_full(error):
        return Reason.STORAGE_FULL
    return Reason.STORE_UNAVAILABLE if error.errno == errno.EROFS else Reason.INTERNAL_ERROR


def error_text(error: OSError) -> str:
    """Return what the operating system says, and of which file."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _cpus() -> int:
    from enginewright_runtime.core.limits import threads  # noqa: PLC0415 - loaded lazily

    return threads()
