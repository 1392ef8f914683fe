"""Runs the steps of one request, in a process that it has to itself."""

import logging
from typing import Final

import numpy as np
from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.processing.chain import label
from enginewright_runtime.session.processing.images import NotAnImageError, image_size
from enginewright_runtime.session.processing.process import Cause, StepFailedError, StepProcess
from enginewright_runtime.session.signature import Signature

from enginewright_serving.server.inference.processing.served import ServedSteps, StepRoute
from enginewright_serving.server.protocol.decode import Feeds

_SECONDS: Final = 10.0  # that the steps before or after the model may take for one request
_SAMPLE_BYTES: Final = 3  # of a decoded pixel
_BEFORE: Final = "steps before the model"
_AFTER: Final = "steps after the model"
_log: Final = logging.getLogger(__name__)


class StepRuns:
    """The steps of a model within the limits of a server; for any thread."""

    def __init__(self, steps: ServedSteps, inflight_bytes: int) -> None:
        """Create it; all requests together may take `inflight_bytes`, of which one never takes all."""
        self._steps = steps
        self._inflight_bytes = inflight_bytes
        self._most_bytes = inflight_bytes // 2  # of what the steps before the model produce
        self._most_pixels = min(steps.most_pixels, self._most_bytes // _SAMPLE_BYTES)

    def image_bytes(self, feeds: Feeds) -> int:
        """Return the bytes of the decoded images among the inputs; raise RequestError 400 for a too large or invalid one."""
        total = 0
        for name in self._steps.images:
            try:
                width, height = image_size(feeds[name].reshape(-1).view(np.uint8).data)
            except NotAnImageError as error:
                raise RequestError(400, f"input {name!r} is not an image: {error}") from None
            if width * height > self._most_pixels:
                raise RequestError(
                    400,
                    f"input {name!r}: the image has {width} x {height} pixels, more than"
                    f" {self._most_pixels:,}",
                )
            total += width * height * _SAMPLE_BYTES
        return total

    def before(self, feeds: Feeds, process: StepProcess) -> tuple[Feeds, Feeds]:
        """Return the model's inputs, and the values of the steps before it for `feeds`; raise RequestError 400 or 504."""
        steps = self._steps
        produced: Feeds = {}
        if steps.before:
            given = {name: feeds[name] for name in steps.before_inputs}
            try:
                produced = process.run(
                    steps.before, given, steps.before_outputs, _SECONDS, self._most_bytes
                )
            except StepFailedError as error:
                raise _describe_failure(error, _BEFORE, 400) from None
        values = feeds | produced
        own = {name: values[name] for name in steps.model.inputs}
        _check_made(steps.model, own, produced)
        return own, produced

    def select_values(self, route: StepRoute, feeds: Feeds, produced: Feeds) -> Feeds:
        """Return what the steps after the model need of its request and of the steps before it."""
        if not route.after_outputs:
            return {}
        values = feeds | produced
        return {name: values[name] for name in self._steps.after_inputs if name in values}

    def after(self, route: StepRoute, kept: Feeds, given: Feeds, process: StepProcess) -> Feeds:
        """Return the outputs of the steps after the model, from its outputs `given` and `kept` values; may raise RequestError."""
        steps = self._steps
        values = kept | {name: array for name, array in given.items() if name in steps.after_inputs}
        try:
            return process.run(
                steps.after, values, route.after_outputs, _SECONDS, self._inflight_bytes
            )
        except StepFailedError as error:
            raise _describe_failure(error, _AFTER, 500) from None


def _check_made(model: Signature, own: Feeds, produced: Feeds) -> None:
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
    return f"after the {_BEFORE}, {error.message}"


def _describe_failure(error: StepFailedError, which: str, status: int) -> RequestError:
    """Return what a client is shown of a failure; `status` is of values that a step refuses."""
    where = f"step {label(error.step)}" if error.step else f"one of the {which}"
    if error.cause is Cause.VALUES:
        return RequestError(status, f"{where} failed on these values: {error.message}")
    if error.cause is Cause.MEMORY:
        return RequestError(status, f"{where} needs too much memory for these values")
    _log.warning("%s: %s; the process is restarted", where, error.message)
    if error.cause is Cause.TIME:
        return RequestError(504, f"{where}: {error.message}")
    return RequestError(status, f"{where} failed on these values: its library ended the process")
