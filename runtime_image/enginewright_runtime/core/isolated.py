"""The child of `isolation`: runs one function and writes what it returned or raised; its log has a command to rerun it."""

import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

from enginewright_contract.report import Finding
from pydantic import AfterValidator, TypeAdapter

from enginewright_runtime.core.answers import ProcessAnswer
from enginewright_runtime.core.disk import is_full
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain

FROM_FILE: Final = "@"  # before the path of a file with the arguments


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


class ChildAnswer(ProcessAnswer):
    """The outcome of a child."""

    outcome: Literal["result", "failure", "session-error", "memory", "disk-full", "error"]
    result: Any = None  # of the function, as JSON
    failure: Finding | None = None  # as the function raised it
    text: Annotated[str, AfterValidator(_encodable)] = ""  # of any other exception


def dump_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Return a function's arguments by name, as JSON."""
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    return {
        name: _adapter(function, name).dump_python(item, mode="json")
        for name, item in bound.items()
    }


def load_result(function: Callable[..., Any], result: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a function's result from JSON."""
    return _adapter(function, "return").validate_python(result)


def dump_result(function: Callable[..., Any], result: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a function's result as JSON."""
    return _adapter(function, "return").dump_python(result, mode="json")


def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(function)[name])


def call(name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Call the function "module:name" with JSON; return its result as JSON."""
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    read = {
        argument: _adapter(function, argument).validate_python(arguments[argument])
        for argument in arguments
    }
    return dump_result(function, function(**read))


def main(function: str, arguments: dict[str, Any], descriptor: int) -> int:
    """Run `function` ("module:name") and write its `ChildAnswer` as JSON."""
    try:
        answer = ChildAnswer(outcome="result", result=call(function, arguments))
    except StageFailure as failure:
        answer = ChildAnswer(outcome="failure", failure=failure.finding)
    except SessionError as error:
        memory = is_out_of_memory(str(error))
        answer = ChildAnswer(outcome="memory" if memory else "session-error", text=str(error))
    except MemoryError as error:
        answer = ChildAnswer(outcome="memory", text=str(error))
    except Exception as error:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        text = f"{type(error).__name__}: {plain(str(error))}"
        answer = ChildAnswer(outcome="disk-full" if is_full(error) else "error", text=text)
    with os.fdopen(descriptor, "w") as writer:
        writer.write(answer.encode())
    return 0


if __name__ == "__main__":
    given = sys.argv[2]
    text = Path(given.removeprefix(FROM_FILE)).read_text() if given.startswith(FROM_FILE) else given
    sys.exit(main(sys.argv[1], json.loads(text), os.dup(sys.stdout.fileno())))
