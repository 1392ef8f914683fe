"""Decodes ModelInferRequest messages into the session's feeds; raw tensors are views of the message.

Clients repeat names, types and shapes, so parsed ones are cached, as JSON headers are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature, Tensor
from google.protobuf.message import DecodeError

from enginewright_serving.binary_tensors import read_tensor
from enginewright_serving.server.protocol import request_checks as checks
from enginewright_serving.server.protocol.decode import Feeds, large_bytes
from enginewright_serving.server.protocol.grpc import typed_contents
from enginewright_serving.server.protocol.grpc.messages import PARAMETER_CHOICES, InferRequest
from enginewright_serving.server.protocol.grpc.wire import SplitRequest
from enginewright_serving.server.protocol.priorities import DEFAULT, read_priority

_CACHED_HEADS: Final = 256
_CACHED_HEAD_BYTES: Final = 4096  # longer heads are not cached
_LARGEST_HEAD: Final = 128 * 1024  # bytes of a request without its tensors
_LARGE_TYPED: Final = 64 * 1024  # bytes of typed contents that take more than a millisecond
_MOST_PARAMETERS: Final = 64  # of a request, input or output

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class InputPlan:
    """An input as a request describes it."""

    tensor: Tensor
    shape: tuple[int, ...]
    count: int
    size: int | None  # `binary_data_size`, which is redundant here


@dataclass(frozen=True, slots=True)
class GrpcPlan:
    """A parsed request without identifier and tensors; valid for all that do not differ in the rest."""

    inputs: tuple[InputPlan, ...]
    outputs: list[str]
    raw: bool  # outputs are sent as raw bytes
    timeout: float  # seconds, 0 without one
    priority: int = DEFAULT
    answers: dict[Shapes, tuple[bytes, ...]] = field(default_factory=dict)  # by `encode`

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has been answered."""
        return bool(self.answers)

    def within(self, timeout: float) -> "GrpcPlan":
        """Return the plan of a client that stops waiting earlier than its parameters say."""
        return GrpcPlan(self.inputs, self.outputs, self.raw, timeout, self.priority, self.answers)


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """A request without its tensors."""

    plan: GrpcPlan
    identifier: bytes


class GrpcDecoder:
    """Decodes the requests of one model."""

    def __init__(
        self,
        signature: Signature,
        check_model: Callable[[str, str], None],
        *,
        most_typed_bytes: int,
    ) -> None:
        """Limit typed contents to `most_typed_bytes`, as parsing them holds the GIL; `check_model` may raise RequestError."""
        self._signature = signature
        self._valued: Final = signature.valued
        self._check_model = check_model
        self._most_typed_bytes = most_typed_bytes
        self._plans: dict[tuple[bool, bytes], GrpcPlan] = {}
        self._large_raw = large_bytes(signature, aligned=len(signature.inputs) == 1)

    def is_slow(self, parts: SplitRequest, size: int) -> bool:
        """Return whether decoding these parts of `size` bytes may take more than a millisecond."""
        return size > (_LARGE_TYPED if parts.typed else self._large_raw)

    def decode(self, message: memoryview, parts: SplitRequest) -> tuple[GrpcRequest, Feeds]:
        """Return the request and inputs of a message in `parts`; raw inputs are views of it where possible."""
        if len(parts.head) > _LARGEST_HEAD:
            raise RequestError(
                413, f"the request has more than {_LARGEST_HEAD} bytes beside tensors"
            )
        _check_identifier(parts.identifier)
        plan = self._plan(parts)
        feeds = (
            self._read_typed(plan, parts) if parts.typed else self._read_raw(plan, parts, message)
        )
        for tensor in self._valued:
            tensor.check_values(feeds[tensor.name])
        return GrpcRequest(plan, parts.identifier), feeds

    def _read_raw(self, plan: GrpcPlan, parts: SplitRequest, message: memoryview) -> Feeds:
        if len(parts.raw) != len(plan.inputs):
            raise RequestError(
                400,
                f"there are {len(parts.raw)} raw_input_contents for {len(plan.inputs)} inputs;"
                " give one for each, in their order",
            )
        feeds: Feeds = {}
        for item, (begin, end) in zip(plan.inputs, parts.raw, strict=True):
            tensor, size = item.tensor, end - begin
            checks.check_size(tensor, item.count, size, "raw_input_contents have")
            if item.size not in {None, size}:
                raise RequestError(
                    400,
                    f"input {tensor.name!r}: binary_data_size is {item.size}, but its"
                    f" raw_input_contents have {size} bytes",
                )
            feeds[tensor.name] = read_tensor(tensor, item.shape, message, begin, size)
        return feeds

    def _read_typed(self, plan: GrpcPlan, parts: SplitRequest) -> Feeds:
        total = sum(len(contents) for contents in parts.typed if contents)
        if total > self._most_typed_bytes:
            raise RequestError(
                413,
                f"the typed contents exceed {self._most_typed_bytes} bytes;"
                " send raw_input_contents",
            )
        feeds: Feeds = {}
        for item, contents in zip(plan.inputs, parts.typed, strict=True):
            tensor = item.tensor
            if item.size is not None:
                raise RequestError(
                    400, f"input {tensor.name!r}: binary_data_size is of raw_input_contents"
                )
            feeds[tensor.name] = typed_contents.read(tensor, contents, item.shape, item.count)
        return feeds

    def _plan(self, parts: SplitRequest) -> GrpcPlan:
        key = (bool(parts.typed), parts.head)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._read_head(parts.head, typed=bool(parts.typed))
            if len(parts.head) <= _CACHED_HEAD_BYTES:
                if len(self._plans) >= _CACHED_HEADS:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _read_head(self, head: bytes, *, typed: bool) -> GrpcPlan:
        request = InferRequest()
        try:
            request.ParseFromString(head)
        except DecodeError:
            raise RequestError(400, "the message is not a valid ModelInferRequest") from None
        self._check_model(request.model_name, request.model_version)
        parameters = _parameters(request, "the request")
        inputs = self._read_inputs(request)
        outputs, raw = self._read_outputs(request, parameters, typed=typed)
        timeout = checks.timeout_seconds(parameters)
        return GrpcPlan(inputs, outputs, raw, timeout, read_priority(parameters))

    def _read_inputs(self, request: Any) -> tuple[InputPlan, ...]:  # noqa: ANN401 - made at run time
        signature = self._signature
        shapes: dict[str, tuple[int, ...]] = {}
        plans: list[InputPlan] = []
        for item in request.inputs:
            tensor = checks.find_input(signature, item.name, item.datatype, shapes)
            if item.HasField("contents"):
                raise RequestError(
                    400,
                    f"input {tensor.name!r} has 'contents', but the request has raw_input_contents;"
                    " give one of them, for all inputs",
                )
            shape = list(item.shape)
            count = tensor.count(shape)
            given = _parameters(item, f"input {tensor.name!r}")
            shapes[tensor.name] = tuple(shape)
            plans.append(
                InputPlan(tensor, shapes[tensor.name], count, given.get(checks.BINARY_SIZE))
            )
        checks.check_inputs(signature, shapes)
        return tuple(plans)

    def _read_outputs(
        self,
        request: Any,  # noqa: ANN401 - made at run time
        parameters: dict[str, Any],
        *,
        typed: bool,
    ) -> tuple[list[str], bool]:
        signature = self._signature
        names: list[str] = []
        for item in request.outputs:
            names.append(checks.find_output(signature, item.name, names).name)
        names = names or list(signature.outputs)
        formless = [
            name for name in names if not typed_contents.has_form(signature.outputs[name].datatype)
        ]
        default = checks.flag(
            parameters, checks.BINARY_OUTPUT, "the request", absent=not typed or bool(formless)
        )
        forms = {
            checks.flag(
                _parameters(item, f"output {item.name!r}"),
                checks.BINARY,
                f"output {item.name!r}",
                absent=default,
            )
            for item in request.outputs
        } or {default}
        if len(forms) > 1:
            raise RequestError(400, "'binary_data' must be the same for all outputs")
        raw = forms.pop()
        if formless and not raw:
            raise RequestError(
                400,
                f"output {formless[0]!r}: {signature.outputs[formless[0]].datatype.name} has no"
                " typed contents; set the parameter 'binary_data_output' to true",
            )
        return names, raw


def _parameters(
    item: Any,  # noqa: ANN401 - made at run time
    where: str,
) -> dict[str, Any]:
    """Return the parameters of `item`, of equal names the last one."""
    if len(item.parameters) > _MOST_PARAMETERS:
        raise RequestError(400, f"{where} has more than {_MOST_PARAMETERS} parameters")
    checks.check_parameters((parameter.key for parameter in item.parameters), where)
    return {parameter.key: _value(parameter.value) for parameter in item.parameters}


def _value(value: Any) -> object:  # noqa: ANN401 - made at run time
    choice = value.WhichOneof(PARAMETER_CHOICES)
    return None if choice is None else getattr(value, choice)


def _check_identifier(identifier: bytes) -> None:
    try:
        checks.check_identifier(identifier.decode())
    except UnicodeDecodeError:
        raise RequestError(400, "'id' is not UTF-8") from None
