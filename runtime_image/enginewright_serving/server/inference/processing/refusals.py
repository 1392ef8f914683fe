"""What clients are shown when steps fail on a request, or make something that the model does not take."""

import logging
from typing import Final

from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.processing.chain import label
from enginewright_runtime.session.processing.process import Cause, StepFailedError
from enginewright_runtime.session.signature import Signature

from enginewright_serving.server.protocol.decode import Feeds

BEFORE: Final = "steps before the model"
AFTER: Final = "steps after the model"
_log: Final = logging.getLogger(__name__)


def check_made(model: Signature, own: Feeds, produced: Feeds) -> None:
    """Refuse inputs from steps that do not fit the model.

    Args:
        model: its signature.
        own: all its inputs.
        produced: those of steps, among other values.

    Raises:
        RequestError: 400.
    """
    try:
        for name, tensor in model.inputs.items():
            if name in produced:
                tensor.count(list(own[name].shape))
                if tensor.values is not None:
                    tensor.check_values(own[name])
        model.check_together({name: array.shape for name, array in own.items()})
    except OutOfProfileError as error:
        raise OutOfProfileError(_of_steps(error)) from None
    except RequestError as error:
        raise RequestError(error.status, _of_steps(error)) from None


def _of_steps(error: RequestError) -> str:
    return f"after the {BEFORE}, {error.message}"


def failed(error: StepFailedError, which: str, status: int) -> RequestError:
    """Return what a client is shown of a failure; `status`: of values that a step refuses."""
    where = f"step {label(error.step)}" if error.step else f"one of the {which}"
    if error.cause is Cause.VALUES:
        return RequestError(status, f"{where} failed on these values: {error.message}")
    if error.cause is Cause.MEMORY:
        return RequestError(status, f"{where} needs too much memory for these values")
    _log.warning("%s: %s; the process is restarted", where, error.message)
    if error.cause is Cause.TIME:
        return RequestError(504, f"{where}: {error.message}")
    return RequestError(status, f"{where} failed on these values: its library ended the process")
