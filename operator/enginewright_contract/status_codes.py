"""What the status code of a client's inference says about the model: run or not, failed or not. Pure.

The sidecar's check `errors` and the analysis of a rollout judge by it, so that no client's choice of timeout, and no load,
makes a pod or a revision look broken. Load has an alert of its own, EnginewrightOverloaded.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

LOAD: Final = frozenset({503, 504})  # not run: refused, or timed out while it waited
_FIRST_ERROR: Final = 500
_Count = TypeVar("_Count", int, float)


def select_run(responses: Mapping[int, _Count]) -> dict[int, _Count]:
    """Return the responses to requests that were run, or refused for what they are."""
    return {code: count for code, count in responses.items() if code not in LOAD}


def select_errors(responses: Mapping[int, _Count]) -> dict[int, _Count]:
    """Return the responses to requests that the model, or its server, failed."""
    return {code: count for code, count in select_run(responses).items() if code >= _FIRST_ERROR}
