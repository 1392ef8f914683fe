"""What `isolation` has forked: runs one function and answers with what it returned or raised."""

import importlib
import json
import logging
import os
from typing import Any

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain


def main(function: str, arguments: dict[str, Any], descriptor: int) -> int:
    """Run `function` ("module:name") and write one JSON answer."""
    module, _, name = function.partition(":")
    answer: dict[str, Any]
    try:
        answer = {"result": getattr(importlib.import_module(module), name)(**arguments)}
    except StageFailure as failure:
        answer = {
            "failure": {
                "reason": failure.reason.value,
                "message": failure.message,
                "nodes": failure.nodes,
            }
        }
    except SessionError as error:
        kind = "memory" if is_out_of_memory(str(error)) else "session_error"
        answer = {kind: str(error)}
    except MemoryError as error:
        answer = {"memory": str(error)}
    except Exception as error:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        answer = {"error": f"{type(error).__name__}: {plain(str(error))}"}
    with os.fdopen(descriptor, "w") as writer:
        json.dump(answer, writer)
    return 0
