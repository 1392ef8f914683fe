"""The request parameter `priority` of Triton's clients: 1 is the highest, 0 or absent the default.

Triton's model configuration has the number of priorities and the default one (ModelDynamicBatching, priority_levels
and default_priority_level). Here all models have five, the third of which is the default. Triton gives a number
above the lowest the default priority; here it is the lowest, so that a larger number never runs before a smaller one.
"""

from typing import Any, Final

from enginewright_runtime.core.request_errors import RequestError

PRIORITY: Final = "priority"  # parameter of a request
HIGHEST: Final = 1
DEFAULT: Final = 3
LOWEST: Final = 5
_TEXT: Final = PRIORITY.encode()
_MOST_SEARCHED: Final = 64 * 1024  # bytes, which take a few microseconds


def read_priority(parameters: dict[str, Any]) -> int:
    """Return a request's priority, from HIGHEST to LOWEST; RequestError 400 if it is invalid."""
    given = parameters.get(PRIORITY, 0)
    if type(given) is not int or given < 0:
        raise RequestError(
            400,
            f"parameter 'priority' must be a number: {HIGHEST} is the highest, {LOWEST} the lowest,"
            f" and 0 the default, which is {DEFAULT}",
        )
    return min(given, LOWEST) or DEFAULT


def may_state_priority(text: memoryview) -> bool:
    """Return whether the beginning of a request, which has its parameters, may state a priority."""
    return _TEXT in bytes(text[:_MOST_SEARCHED])
