"""Copies of Kubernetes objects, which are trees of dicts, lists and scalars: copy.deepcopy took most of the time of simulations."""

import copy
from typing import Any, TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """Return a deep copy."""
    known: Any = value
    if type(known) is dict:
        known = {key: copied(each) for key, each in known.items()}
    elif type(known) is list:
        known = [copied(each) for each in known]
    elif not isinstance(known, (str, int, float, type(None))):
        known = copy.deepcopy(known)
    return known  # type: ignore[no-any-return]  # of the type that it is a copy of
