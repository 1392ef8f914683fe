"""What `isolation` has forked: runs one function and answers with what it returned or raised.

By hand, to see what a child that failed does: `python -m enginewright_runtime.core.isolated MODULE:NAME
ARGUMENTS`, which the log gives with every such failure; arguments too long for a command are in a file.
"""

import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter

from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain

FROM_FILE: Final = "@"  # before the path of a file with the arguments


def dump_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Return a function's arguments by name, as JSON."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    return {
        name: _adapter(function, name).dump_python(each, mode="json")
        for name, each in given.items()
    }


def load_result(function: Callable[..., Any], result: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return what a function has returned out of its JSON."""
    return _adapter(function, "return").validate_python(result)


def dump_result(function: Callable[..., Any], result: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return what a function has returned as JSON."""
    return _adapter(function, "return").dump_python(result, mode="json")


def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(function)[name])


def call(name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Call the function "module:name" with JSON; return its result as JSON."""
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    read = {each: _adapter(function, each).validate_python(arguments[each]) for each in arguments}
    return dump_result(function, function(**read))


def main(function: str, arguments: dict[str, Any], descriptor: int) -> int:
    """Run `function` ("module:name") and write one JSON answer."""
    answer: dict[str, Any]
    try:
        answer = {"result": call(function, arguments)}
    except StageFailure as failure:
        answer = {"failure": failure.finding.model_dump(mode="json")}
    except SessionError as error:
        kind = "memory" if is_out_of_memory(str(error)) else "session_error"
        answer = {kind: str(error)}
    except MemoryError as error:
        answer = {"memory": str(error)}
    except Exception as error:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        kind = "full" if is_full(error) else "error"
        answer = {kind: f"{type(error).__name__}: {plain(str(error))}"}
    with os.fdopen(descriptor, "w") as writer:
        json.dump(answer, writer)
    return 0


if __name__ == "__main__":
    given = sys.argv[2]
    text = Path(given.removeprefix(FROM_FILE)).read_text() if given.startswith(FROM_FILE) else given
    sys.exit(main(sys.argv[1], json.loads(text), os.dup(sys.stdout.fileno())))
