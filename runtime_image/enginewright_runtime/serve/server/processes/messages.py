"""The parts of messages between server processes: findings about health, and responses."""

from typing import Any, Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.message import HttpResponse
from enginewright_runtime.serve.server.processes.channel import ProcessMessage

# Kinds of messages. The first process asks for all but the last two.
START: Final = "start"  # load and prove the model; answered once that is done
SERVE: Final = "serve"  # accept connections; otherwise like the next one
REPORT: Final = "report"  # counts and health, of a process and of the pod
MEASUREMENTS: Final = "measurements"
EXECUTION: Final = "execution"
COPY: Final = "copy"  # a request for the sidecar to compare
DRAIN: Final = "drain"
PROGRESS: Final = "progress"  # of the start
ANSWER: Final = "answer"  # a request that is about the whole pod


def problem_fields(problem: HealthProblem | None) -> dict[str, Any] | None:
    """Return a problem as JSON."""
    return None if problem is None else {"message": problem.message, "reason": problem.reason}


def read_problem(fields: dict[str, Any] | None) -> HealthProblem | None:
    """Return the problem of `problem_fields`."""
    if fields is None:
        return None
    reason = fields["reason"]
    return HealthProblem(fields["message"], None if reason is None else Reason(reason))


def response_message(kind: str, response: HttpResponse, **fields: int) -> ProcessMessage:
    """Return a response as a message, with further `fields`."""
    headers = response.headers.decode("latin-1")
    about = {"status": response.status, "headers": headers, **fields}
    return ProcessMessage(kind, about, b"".join(response.parts))


def read_response(message: ProcessMessage) -> HttpResponse:
    """Return the response of `response_message`."""
    fields, body = message.fields, message.body
    headers = fields["headers"].encode("latin-1")
    return HttpResponse(fields["status"], headers, [body], len(body))
