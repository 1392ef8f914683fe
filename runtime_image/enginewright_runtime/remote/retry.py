"""Retries transient failures of transfers a few times; the Job's own backoff covers longer outages."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.remote.failures import unreachable

_log: Final = logging.getLogger(__name__)
_FRUITLESS_TRIES: Final = 4  # consecutive, without a byte of progress
_TRIES: Final = 20  # in total
_FIRST_PAUSE: Final = 0.5  # seconds, doubled with every fruitless try
PASSING_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # of HTTP
_T = TypeVar("_T")


class Unavailable(Exception):  # noqa: N818 - not an error yet: it is retried
    """A try failed transiently; `after` is the server's Retry-After in seconds, `remedy` counts if the failure persists."""

    def __init__(
        self, cause: str, after: float | None = None, *, remedy: str | None = None
    ) -> None:
        super().__init__(cause)
        self.after = after
        self.remedy = remedy


async def with_retries(
    what: str,
    attempt: Callable[[], Awaitable[_T]],
    received: Callable[[], int] = lambda: 0,
    failure: Callable[[str, str | None], Exception] = unreachable,
) -> _T:
    """Await `attempt` until it does not raise `Unavailable`, with a bounded number of tries.

    Args:
        what: the end of "cannot ...", in the message of the failure.
        attempt: one try, which continues after the bytes that were `received` before.
        received: bytes so far, which tell tries with progress from fruitless ones.
        failure: returns what to raise after the last try, for its cause and remedy.
    """
    fruitless = 0
    for number in range(1, _TRIES + 1):
        before = received()
        try:
            return await attempt()
        except Unavailable as unavailable:
            fruitless = 0 if received() > before else fruitless + 1
            if fruitless >= _FRUITLESS_TRIES or number == _TRIES:
                cause = f"cannot {what}: {unavailable} ({number} tries)"
                raise failure(cause, unavailable.remedy) from None
            pause = unavailable.after or _FIRST_PAUSE * 2**fruitless * random.uniform(0.5, 1)  # noqa: S311 - jitter
            _log.warning(
                "%s; retrying in %.1f s from %s", unavailable, pause, format_bytes(received())
            )
            await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")
