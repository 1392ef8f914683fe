"""Which fields a user has set that this version does not support.

A field must not be ignored silently, so the operator rejects it by name. The models themselves mark
these fields (`markers.NotYet`), so that the schema's descriptions, the documentation and the
rejection cannot disagree.
"""

import re
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import get_args

from pydantic import BaseModel

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.markers import NotYet


def refused_fields(spec: InferenceModelSpec) -> tuple[str, ...]:
    """Return the paths of refused fields, with the value where only some values are refused.

    For example `("spec.precision", "spec.build.interim: CUDA (only None)")`; empty when all fields are
    supported.
    """
    return tuple(_refused(spec, "spec"))


@cache  # called in every reconciliation
def _fields(model: type[BaseModel]) -> tuple[tuple[str, str, NotYet | None], ...]:
    """Return name, name in the API and marker of fields that are marked or contain marked fields."""
    found = []
    for name, field in model.model_fields.items():
        marker = next((entry for entry in field.metadata if isinstance(entry, NotYet)), None)
        if marker or any(_fields(part) for part in _models(field.annotation)):
            found.append((name, field.alias or name, marker))
    return tuple(found)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of that type can be an instance of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, UnionType):
        for each in get_args(annotation):
            yield from _models(each)


def _refused(part: BaseModel, path: str) -> Iterator[str]:
    for name, alias, marker in _fields(type(part)):
        value = getattr(part, name)
        place = f"{path}.{alias}"
        if marker is None:
            if isinstance(value, BaseModel):
                yield from _refused(value, place)
        elif value is None or value == ():
            continue
        elif marker.accepts is None:
            yield place
        elif not re.fullmatch(marker.accepts, str(value), re.DOTALL):
            yield f"{place}: {value} (only {marker.accepted})"
