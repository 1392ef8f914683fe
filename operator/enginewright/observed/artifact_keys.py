"""Keys of artefacts that an object names, by the names of its fields.

Fields of other versions count as well, such as of a newer one that was rolled back: their artefacts are needed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from enginewright_contract.task import task_text

from enginewright.observed.base import Json, spec

_KEY: Final = re.compile("[0-9a-f]{64}")


def keys_in(value: Any) -> frozenset[str]:  # noqa: ANN401 - any JSON value
    """Return the values of all fields, at any depth, whose names end with "key" and that have a key's form."""
    return frozenset(_keys(value))


def keys_of_pods(obj: Json) -> frozenset[str]:
    """Return the keys in the tasks of the pods of a Deployment or a Job."""
    pod = (spec(obj).get("template") or {}).get("spec") or {}
    containers = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    variables = (
        {str(item.get("name")): str(item.get("value", "")) for item in one.get("env") or ()}
        for one in containers
    )
    return frozenset().union(*(keys_in(_parse(task_text(variable))) for variable in variables))


def _keys(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, str):
                if name.lower().endswith("key") and _KEY.fullmatch(item):
                    yield item
            else:
                yield from _keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _keys(item)


def _parse(task: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(task)
    except ValueError:
        return None
