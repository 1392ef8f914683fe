"""Parse observed objects to the typed API; an invalid object does not affect others."""

import logging
from collections.abc import Iterable
from typing import TypeVar, cast

from pydantic import ValidationError

from enginewright.api.base import ApiModel
from enginewright.api.conditions import StatusReason
from enginewright.controller.cache import Unpacked
from enginewright.controller.events import EventRecorder
from enginewright.kube.api import JsonObject
from enginewright.plan.types import EventIntent

Typed = TypeVar("Typed", bound=ApiModel)

_logger = logging.getLogger(__name__)


def parse_objects(model: type[Typed], objects: Iterable[JsonObject]) -> list[Typed]:
    """Return the valid objects, sorted by name; the others are logged and left out."""
    valid: list[Typed] = []
    for obj in sorted(objects, key=lambda one: str(one["metadata"]["name"])):
        try:
            valid.append(_parse(model, obj))
        except ValidationError as error:
            _logger.warning(
                "ignoring %s %s: %s", obj["kind"], obj["metadata"]["name"], summary(error)
            )
    return valid


def readable(model: type[Typed], observed: JsonObject, recorder: EventRecorder) -> Typed | None:
    """Return the object, or None, with an Event and a log line, if it is invalid: the CRD is another version's."""
    try:
        return _parse(model, observed)
    except ValidationError as error:
        intent = EventIntent("Warning", StatusReason.INVALID_SPEC, summary(error))
        recorder.record(observed, intent)
        _logger.error("cannot read the %s: %s", observed["kind"], intent.message)  # noqa: TRY400 - no bug of ours
        return None


def _parse(model: type[Typed], obj: JsonObject) -> Typed:
    """Return the typed object, which is kept with a cached one; one kind has one type. Raises ValidationError."""
    if not isinstance(obj, Unpacked):
        return model.model_validate(obj)
    if obj.view is None:
        obj.view = model.model_validate(obj)
    return cast("Typed", obj.view)


def summary(error: ValidationError) -> str:
    """Return what is wrong with an object in one sentence: the field, the reason."""
    parts = [
        f"{'.'.join(str(step) for step in detail['loc'])}: {detail['msg']}"
        for detail in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(parts)
