"""The process of the steps: loads them and runs them on command, until its socket is closed."""

import socket
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.session.processing import frames
from enginewright_runtime.session.processing.steps import LoadedSteps, StepError

# kinds of failure in an answer
VALUES: Final = "values"
MEMORY: Final = "memory"


def main(paths: dict[str, str], libraries_of: str, descriptor: int) -> int:
    """Load the steps at `paths`, by name, and serve them on the socket `descriptor`."""
    with socket.socket(fileno=descriptor) as line:
        try:
            steps = LoadedSteps(
                {name: Path(path) for name, path in paths.items()}, Path(libraries_of)
            )
        except SessionError as error:
            frames.send(line, {"error": plain(str(error))}, {})
            return 0
        except StageFailure as failure:
            frames.send(line, {"failure": failure.finding.model_dump(mode="json")}, {})
            return 0
        frames.send(line, {"facts": to_jsonable_python(steps.facts)}, {})
        while True:
            try:
                document, feeds = frames.receive(line)
            except frames.EndedError:
                return 0
            _answer(line, steps, document, feeds)


def _answer(line: socket.socket, steps: LoadedSteps, document: dict[str, Any], feeds: Any) -> None:  # noqa: ANN401 - arrays
    try:
        arrays = steps.run(document["steps"], feeds, document["outputs"])
    except StepError as error:
        kind = MEMORY if is_out_of_memory(str(error)) else VALUES
        frames.send(line, {"kind": kind, "step": error.step, "error": plain(str(error))}, {})
    except MemoryError:
        frames.send(line, {"kind": MEMORY, "step": None, "error": "an allocation failed"}, {})
    else:
        size, most = frames.count_bytes(arrays.values()), document["most_bytes"]
        if size > most:
            message = f"their outputs take {size:,} bytes, more than {most:,}"
            frames.send(line, {"kind": VALUES, "step": None, "error": message}, {})
        else:
            frames.send(line, {}, arrays)
