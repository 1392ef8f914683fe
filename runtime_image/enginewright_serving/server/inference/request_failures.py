"""Errors that clients get for failures of the server, and for failed runs."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.inference.run_errors import Fault

_log: Final = logging.getLogger(__name__)


def busy(message: str) -> RequestError:
    """Return the refusal of a request that may succeed later."""
    return RequestError(503, f"{message}; try again later")


def queue_is_full(capacity: int) -> RequestError:
    """Return the refusal of a request while `capacity` others wait."""
    return busy(f"the queue is full with {capacity} requests")


def report_unexpected(doing: str) -> RequestError:
    """Log the current exception, and return the error for its client."""
    reference = secrets.token_hex(4)
    _log.exception("unexpected error while %s (reference %s)", doing, reference)
    return RequestError(500, f"unexpected error; see reference {reference} in the server's log")


@contextmanager
def refuse_errors(refuse: Callable[[RequestError], None], doing: str) -> Iterator[None]:
    """Pass what the context raises to `refuse`: an internal error fails one request, not the connection."""
    try:
        yield
    except RequestError as error:
        refusal = error.detach()
    except Exception:  # noqa: BLE001 - above
        refusal = report_unexpected(doing)
    else:
        return
    refuse(refusal)


def describe_failed_run(error: Exception, fault: Fault | None) -> RequestError:
    """Return the error for the client whose run raised `error`, caused by `fault`."""
    if isinstance(error, RequestError):
        return error
    if fault is Fault.CLIENT:
        return RequestError(400, f"the model rejects these inputs: {plain(str(error))}")
    reference = secrets.token_hex(4)
    _log.error("the model failed on a request (reference %s): %s", reference, error)
    return RequestError(
        500, f"the model failed on these inputs (reference {reference}): {plain(str(error))}"
    )
