"""Which fields a user has set that this version does not act on.

A field that is silently ignored is a promise broken in secret, so the operator refuses it by name.
The models themselves say which fields those are (`markers.NotYet`), so that the schema's
descriptions, the documentation and the refusal cannot disagree.
"""

import re
from collections.abc import Iterator

from pydantic import BaseModel

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.markers import NotYet


def refused_fields(spec: InferenceModelSpec) -> tuple[str, ...]:
    """Return the paths of refused fields, with the value where only some values are refused.

    For example `("spec.precision", "spec.build.interim: CUDA (only None)")`; empty when all can be
    honoured.
    """
    return tuple(_refused(spec, "spec"))


def _refused(part: BaseModel, path: str) -> Iterator[str]:
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        place = f"{path}.{field.alias or name}"
        marker = next((entry for entry in field.metadata if isinstance(entry, NotYet)), None)
        if marker is None:
            if isinstance(value, BaseModel):
                yield from _refused(value, place)
        elif value is None or value == ():
            continue
        elif marker.accepts is None:
            yield place
        elif not re.fullmatch(marker.accepts, str(value), re.DOTALL):
            yield f"{place}: {value} (only {marker.told})"
