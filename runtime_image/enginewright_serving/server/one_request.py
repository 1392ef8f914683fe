"""Answers one request without a server, for preflight."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from enginewright_contract.facts import AnsweredTensor, RequestAnswer
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.inference.processing.runs import StepRuns
from enginewright_serving.server.protocol.decode import Decoder, Feeds
from enginewright_serving.server.startup.prepare import ServedModel, prepare
from enginewright_serving.transport.message import Body
from enginewright_serving.transport.settings import TransportSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN_VALUES: Final = 16  # of an output
_LONGEST_TEXT: Final = 200  # characters of one value


def answer(task: ServeTask, artifact: Path, request: Path) -> RequestAnswer:
    """Return what the server of `task` would answer to the JSON request in the file `request`; may raise StageFailure."""
    model = prepare(task, artifact, lambda _: None)
    try:
        outputs = _outputs(model, request.read_bytes())
    except RequestError as error:
        return RequestAnswer(status=error.status, message=error.message)
    return RequestAnswer(status=200, outputs=outputs)


def _outputs(model: ServedModel, content: bytes) -> tuple[AnsweredTensor, ...]:
    body = Body(len(content), len(content))
    body.view()[:] = content
    plan, feeds = Decoder(model.client_signature).decode(body, None)
    values = _values(model, plan.outputs, feeds)
    signature = model.client_signature
    return tuple(
        AnsweredTensor(
            name=name,
            datatype=signature.outputs[name].datatype.name,
            shape=values[name].shape,
            values=tuple(_show(item) for item in values[name].reshape(-1)[:_SHOWN_VALUES]),
        )
        for name in plan.outputs
    )


def _values(model: ServedModel, outputs: list[str], feeds: Feeds) -> Feeds:
    steps = model.steps
    if steps is None:
        return _run(model, outputs, feeds)
    runs = StepRuns(steps, TransportSettings().inflight_bytes)
    process = steps.processes[0]
    runs.image_bytes(feeds)
    own, produced = runs.before(feeds, process)
    route = steps.route(outputs)
    given = _run(model, route.model_outputs, own)
    if route.after_outputs:
        given |= runs.after(route, runs.select_values(route, feeds, produced), given, process)
    return given


def _run(model: ServedModel, outputs: list[str], feeds: Feeds) -> Feeds:
    try:
        arrays: list[NDArray[Any]] = model.runner.run(outputs, feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
        message = f"the model failed on these inputs: {plain(str(error))}"
        raise RequestError(500, message) from None
    return dict(zip(outputs, arrays, strict=True))


def _show(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
