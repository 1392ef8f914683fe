"""Calls that run at once, for one model: what one of them raises ends the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from enginewright_cli.preflight.stopping import Stopped


def in_parallel(
    calls: Sequence[Callable[[], None]], at_once: int, abandon: Callable[[], None]
) -> None:
    """Make all calls, and return when the last one under way has ended.

    Args:
        calls: begun in this order.
        at_once: so many at most.
        abandon: ends the calls under way soon, with `Stopped`.

    Raises:
        Exception: the first that a call has raised by itself; else `Stopped`.
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
