"""Copies of Kubernetes objects, which are trees of dicts, lists and scalars: copy.deepcopy took most of the time of simulations."""

import copy
from typing import Any, TypeVar

T = TypeVar("T")


def copy_json(value: T) -> T:
    json_value: Any = value
    if type(json_value) is dict:
        json_value = {key: copy_json(item) for key, item in json_value.items()}
    elif type(json_value) is list:
        json_value = [copy_json(item) for item in json_value]
    elif not isinstance(json_value, (str, int, float, type(None))):
        json_value = copy.deepcopy(json_value)
    return json_value  # type: ignore[no-any-return]  # of the type that it is a copy of
