"""Which fields a user has set that this version does not support.

A field that is silently ignored is a promise broken in secret, so the operator refuses it by name.
The models themselves say which fields those are (`markers.NotYet`), so that the schema's
descriptions, the documentation and the refusal cannot disagree.
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

    For example `("spec.precision", "spec.build.interim: CUDA (only None)")`; empty when all can be
    honoured.
    """
    return tuple(_refused(spec, "spec"))


@cache  # every pass over a model asks
def _fields(model: type[BaseModel]) -> tuple[tuple[str, str, NotYet | None], ...]:
    """Return name, name in the API and marker of the fields that are marked or hold such fields."""
    found = []
    for name, field in model.model_fields.items():
        marker = next((entry for entry in field.metadata if isinstance(entry, NotYet)), None)
        if marker or any(_fields(part) for part in _models(field.annotation)):
            found.append((name, field.alias or name, marker))
    return tuple(found)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models of which a value of that type can be one."""
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
