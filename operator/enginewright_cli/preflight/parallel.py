"""Concurrent calls for one model: an exception of one ends the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from enginewright_cli.preflight.stopping import Stopped


def in_parallel(
    calls: Sequence[Callable[[], None]], at_once: int, abandon: Callable[[], None]
) -> None:
    """Make all calls, and return when all of them have ended.

    Args:
        calls: started in this order.
        at_once: maximum number at once.
        abandon: makes the running calls end soon, with `Stopped`.

    Raises:
        Exception: the first one that is not `Stopped`; otherwise `Stopped`.
    """
    if not calls:
        return
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        running = [pool.submit(each) for each in calls]
        done, waiting = wait(running, return_when=FIRST_EXCEPTION)
        if any(each.exception() for each in done):
            abandon()
            for each in waiting:
                each.cancel()
    raised = [error for each in running if not each.cancelled() and (error := each.exception())]
    if raised:
        raise next((each for each in raised if not isinstance(each, Stopped)), raised[0])
