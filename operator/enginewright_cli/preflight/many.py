"""Looks at one model or at many: in the order asked, as many at once as there are CPUs and memory.

Where CPUs are left the Jobs of one model run at once too.
A model that cannot be looked at is told of and stops no other. After a signal everything under way
ends what it has started and removes its folders, and only then does the command end.
"""

import errno
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Protocol

from enginewright.contract.images import ImageFacts
from enginewright.contract.reasons import REMEDIES, Reason

from enginewright_cli.preflight.cache import Cache
from enginewright_cli.preflight.memory import Memory, apart
from enginewright_cli.preflight.outputs import Outputs, Told
from enginewright_cli.preflight.remedies import REMEDIES_HERE
from enginewright_cli.preflight.request import Request
from enginewright_cli.preflight.result import Found, Result, TargetResult
from enginewright_cli.preflight.stages import InstallationError, Stages
from enginewright_cli.preflight.stopping import Stop, Stopped

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class Watcher(Protocol):
    """Hears how far each model is, from any thread."""

    def begins(self, source: str) -> None:
        """Hear that it is looked at from now on."""
        ...

    def stage(self, source: str, target: str, stage: str) -> None:
        """Hear what is done now."""
        ...

    def ends(self, result: Result) -> None:
        """Hear what came of it."""
        ...


@dataclass(frozen=True)
class Shop:
    """What all models have in common."""

    held: ImageFacts
    installed: str  # digest of what is installed
    cache: Cache | None
    outputs: Outputs
    jobs: int | None  # at most at once; None: as many as there are CPUs
    stages: Stages
    stop: Stop
    job_seconds: float  # that the stages of one Job may take


def look(
    requests: Sequence[Request], shop: Shop, watcher: Watcher
) -> tuple[list[Result], list[Told]]:
    """Look at all of them; return the results in the order asked, and what was written.

    Raises:
        Stopped: a signal came; nothing is left behind.
    """
    jobs = min(shop.jobs or _cpus(), len(requests))
    each_at_once = max(1, _cpus() // jobs)
    memory = Memory()
    waiting = list(range(len(requests)))
    running: dict[Future[tuple[Result, list[Told]]], int] = {}
    found: dict[int, tuple[Result, list[Told]]] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        while waiting or running:
            while waiting and len(running) < jobs and not shop.stop.is_set():
                request = requests[waiting[0]]
                at_once = memory.take(waiting[0], request, min(each_at_once, apart(request)))
                if not at_once:
                    break
                number = waiting.pop(0)
                running[pool.submit(_one, request, shop, watcher, at_once)] = number
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                number = running.pop(each)
                memory.give_back(number)
                if each.exception() is None:
                    found[number] = each.result()
                elif not isinstance(each.exception(), Stopped):
                    shop.stop.set()  # a bug of ours: end the others, and let it be seen
                    each.result()
    if len(found) < len(requests):
        raise Stopped
    results = [found[number][0] for number in range(len(requests))]
    return results, [each for number in range(len(requests)) for each in found[number][1]]


def _one(request: Request, shop: Shop, watcher: Watcher, at_once: int) -> tuple[Result, list[Told]]:
    watcher.begins(request.source)
    # the model that would be served is no part of a result
    if shop.cache and shop.outputs.fix is None:
        earlier = shop.cache.result(request, shop.held, shop.installed)
        if earlier:
            watcher.ends(earlier)
            return earlier, []
    said: list[Told] = []

    def tell(target: str, stage: str) -> None:
        watcher.stage(request.source, target, stage)

    try:
        shop.stages.begin()
        # in the time that the stages take to begin
        from enginewright_cli.preflight.check import check  # noqa: PLC0415
        from enginewright_cli.preflight.workplace import workplace  # noqa: PLC0415

        with workplace(shop.stages, shop.stop, shop.job_seconds) as place:
            result = check(request, place, shop.held, tell, at_once)
            said = shop.outputs.save_model(result, lambda key: place.artifact("prepared", key))
            if shop.cache:
                shop.cache.keep(request, shop.held, shop.installed, result, place.fetched())
    except InstallationError as error:
        result = _unknown(request, Reason.INTERNAL_ERROR, str(error))
    except OSError as error:
        reason = Reason.STORE_UNAVAILABLE if error.errno in _NO_ROOM else Reason.INTERNAL_ERROR
        result = _unknown(request, reason, _in_words(error))
    watcher.ends(result)
    return result, said


def _unknown(request: Request, reason: Reason, message: str) -> Result:
    """Return the result of a model that could not be looked at."""
    names = tuple(each.name for each in request.targets)
    finding = Found(
        severity="error",
        reason=reason,
        message=message,
        remedy=REMEDIES_HERE.get(reason, REMEDIES[reason]),
        stage="preflight",
        targets=names,
    )
    return Result(
        verdict="fail",
        source=request.source,
        findings=(finding,),
        targets={
            each.name: TargetResult(
                verdict="fail", backend=each.backend, reason=reason, message=message
            )
            for each in request.targets
        },
    )


def _in_words(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _cpus() -> int:
    from enginewright_runtime.core.limits import threads  # noqa: PLC0415 - loaded lazily

    return threads()
