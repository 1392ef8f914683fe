"""Why a build failed: a reason and a message, derived from NVIDIA's messages. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import name_nodes, remedy
from enginewright_contract.task import ENGINE_STAGES
from onnx import NodeProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.labels import format_label
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.tensorrt import workspace
from enginewright_runtime.tensorrt.results import NO_PLUGIN, BuildResult, ParserError

_PLACE: Final = re.compile(r" ?In \S+ at /[^\s)]+")
_ERROR: Final = re.compile(r"Error Code \d+: (?P<kind>[\w ]+?) ?\((?P<message>.*)\)\s*$", re.DOTALL)
_SOURCE: Final = re.compile(r"^\s*(?:\[[\w.]+:\d+: \w+\]|[\w.]+\.(?:cpp|h):\d+:) ")
_GENERAL: Final = frozenset({"API Usage Error", "Internal Error", "Myelin"})
_LONGEST: Final = 300

_CUDA: Final = re.compile(r"cudaError (\d+)|CUDA initialization failure with error: (\d+)")
_DRIVER_TOO_OLD: Final = "35"
_NO_HOST_MEMORY: Final = (
    "std::bad_alloc",
    "MemoryError",
    "Failed to allocate host memory",
    "Unexpected exception Resource temporarily unavailable",  # no memory for a thread's stack: EAGAIN
)
# of the builder, with kernels for one kind of device: all of NVIDIA's packages have it, other distributions of TensorRT do not
_KERNELS: Final = re.compile(r"Unable to load library: (?P<name>libnvinfer_builder_resource\w*)")
# 10.6 says no more where memory ends while its kernels load, which takes 0.8 GiB of an H200
_UNSPECIFIC: Final = re.compile(r"Error Code \d+: (?:Cuda Runtime|Cask) ")
_LITTLE_BYTES: Final = 2 << 30  # of device memory, in which no build can be expected to succeed
_EXTERNAL: Final = ("Failed to open file", "ONNX external weights")
_SYMMETRIC: Final = (
    "quantize symmetrically, with int8 weights and activations and unquantized biases, or give the"
    " unquantized model with spec.precision INT8 and spec.quantization.calibration"
)
_AMPERE: Final = (
    "set spec.precision to FP16, or choose an accelerator class of compute capability 8.0 or newer"
)
_PRECISION: Final = {  # message -> remedy; the first match applies
    re.compile(r"HW-specific datatypes: .*\bb16\b"): _AMPERE,
    re.compile(r"HW-specific datatypes: .*\bfp8"): (
        "set spec.precision to FP16 or INT8, or choose an accelerator class of compute capability 8.9"
        " or newer"
    ),
    re.compile(r"HW-specific datatypes"): Reason.PRECISION_UNSUPPORTED.remedy,
    re.compile(r"FP32 GEMM is not supported"): _AMPERE,
    re.compile(r"Quantized constant \("): _SYMMETRIC,
    re.compile(r"Non-zero zero point is not supported"): _SYMMETRIC,
    re.compile(r"has type Int32 but must have type FP8"): _SYMMETRIC,
}
_OPERATION: Final = re.compile(r"Cannot compile operation '(?P<name>[^']+)'")
_MISSING: Final = (
    re.compile(r"no optimization profile has been defined"),
    re.compile(r"input tensor (?P<name>\S+) is missing dimensions in profile"),
)
_INVALID: Final = (
    re.compile(r"for input tensors? (?P<name>[^,\s]+).*please ensure"),
    re.compile(r"for tensor (?P<name>\S+) and profile"),
    re.compile(r"nput tensor (?P<name>\S+) has .*(?:dimensions|profile)"),
    re.compile(r"values for profile \d+ violate shape constraints"),
)
# places where it computes sizes from those of the profile
_SIZES: Final = re.compile(r"In analyzeShapes at|shapeContext\.cpp")


def label_node(nodes: Sequence[NodeProto], error: ParserError) -> str:
    """Return the label of the node that an error of the parser is about; unnamed nodes are found by their place."""
    index = error.node
    if index is not None and 0 <= index < len(nodes):
        node = nodes[index]
        if (node.name, node.op_type) == (error.name, error.operator):
            return graphs.label(node)
    return format_label(error.name, error.operator)


@dataclass(frozen=True)
class Circumstances:
    """The context that a message names besides the library's message."""

    title: str  # of the library
    target: str  # "compute capability 8.9", or "the local device"
    label: Callable[[ParserError], str]  # of a node, as people find it in the model
    operations: Mapping[str, str] = field(default_factory=dict)  # name -> "name (OpType)"
    inputs: tuple[str, ...] = ()  # dynamic ones, with their opt sizes
    workspace_bytes: int | None = None  # as requested
    free_bytes: int | None = None  # of the device's memory, before and after the build, if known


def sentence(text: str) -> str:
    """Return one of the library's messages in readable form: without classes and files."""
    message = _PLACE.sub("", " ".join(text.split()))
    if match := _ERROR.search(message):
        kind, inner = match.group("kind"), match.group("message")
        message = inner if kind in _GENERAL else f"{kind}: {inner}"
    message = _SOURCE.sub("", message).strip().rstrip(".")
    return message if len(message) <= _LONGEST else message[:_LONGEST] + " …"


def failure(answer: BuildResult, about: Circumstances) -> StageFailure:
    """Return why a build failed; of several causes the one to fix first."""
    if answer.supported is not None:
        return StageFailure(
            Reason.ENGINE_INCOMPATIBLE,
            f"{about.title} does not build for {about.target}, only for"
            f" {', '.join(answer.supported)}",
            remedy="choose another backend in spec.backends for accelerators of this class",
        )
    if answer.unprofiled:
        return StageFailure(
            Reason.SHAPE_PROFILE_MISSING,
            f"{about.title} needs a shape profile of input {', '.join(answer.unprofiled)}",
            remedy="add it to spec.shapes with min, opt and max; if its values are sizes, also with"
            ' range: {low: "1", high: "640"} (preflight: --shapes INPUT=MIN:OPT:MAX@1..640), of which the'
            " largest fits the opt and max sizes of the other inputs; random values rarely fit them, so give"
            " inputs in spec.parity.samples",
        )
    text = "\n".join(answer.errors)
    if any(sign in text for sign in _NO_HOST_MEMORY):
        return out_of_memory(f"building the engine with {about.title}")
    if lacking := _lacks_kernels(about.title, answer.errors):
        return lacking
    if not answer.parsed:
        return _describe_unparsed(answer, about)
    return _of_build(answer, about)


def out_of_memory(doing: str) -> StageFailure:
    """Return the failure of a build that exceeded the container's memory."""
    return StageFailure(
        Reason.OUT_OF_MEMORY,
        f"{doing} exceeds its memory limit",
        remedy=remedy(Reason.OUT_OF_MEMORY, ENGINE_STAGES[0]),
    )


def describe_unsupported(errors: Sequence[ParserError], about: Circumstances) -> StageFailure:
    """Return the failure of a model without any supported part that is worth an engine."""
    nodes = tuple(dict.fromkeys(about.label(error) for error in errors if error.is_named))
    plugin = any(NO_PLUGIN in error.message for error in errors)
    return StageFailure(
        Reason.UNSUPPORTED_OPERATOR,
        f"{about.title} has no implementation of {name_nodes(list(nodes)) or 'this model'}"
        + (", nor a plugin" if plugin else "")
        + (f": {sentence(errors[0].message)}" if errors and not nodes else ""),
        nodes=nodes,
    )


def not_in_parts(why: StageFailure, limit: str) -> StageFailure:
    """Return the failure of a model supported in parts, which the provider does not load: `limit`."""
    return StageFailure(
        why.reason,
        f"{why.cause}; {limit}, so no engine is built for a part",
        nodes=why.nodes,
        remedy="name backend tensorrt-rtx, which loads engines in parts, or cuda in spec.backends,"
        " or replace the operators when exporting",
    )


def add_culprit(why: StageFailure, label: str) -> StageFailure:
    """Return the failure of a build with the node up to which the model is built."""
    return StageFailure(
        why.reason,
        f"{why.cause}; it builds the nodes before {label}, and not with it",
        nodes=(label,),
        remedy=why.finding.remedy,
    )


def _describe_unparsed(answer: BuildResult, about: Circumstances) -> StageFailure:
    messages = [*(error.message for error in answer.parser), *answer.errors]
    for item in messages:
        if any(sign in item for sign in _EXTERNAL):
            return StageFailure(
                Reason.EXTERNAL_DATA_MISSING,
                f"{about.title} cannot read the weights: {_without_folder(item)}",
            )
    if message := _precise(messages):
        nodes = tuple(about.label(error) for error in answer.parser if _precise([error.message]))
        return _precision(message, nodes, about)
    if missing := [error for error in answer.parser if error.unsupported]:
        return describe_unsupported(missing, about)
    # an error of the complete model names no node
    nodes = tuple(about.label(error) for error in answer.parser if error.is_named)
    why = answer.parser[0].message if answer.parser else (messages or ["it gives no reason"])[-1]
    at = f" at {name_nodes(list(nodes))}" if nodes else ""
    return StageFailure(
        Reason.BUILD_FAILED,
        f"{about.title} cannot parse the model{at}: {sentence(why)}",
        nodes=nodes,
    )


def _of_build(answer: BuildResult, about: Circumstances) -> StageFailure:
    # without a device every build logs CUDA errors; they are the cause only if there is no other
    errors = [error for error in answer.errors if not _CUDA.search(error)]
    if not errors:
        return _without_device(answer, about)
    if message := _precise(errors):
        operation = _OPERATION.search(message)
        name = operation.group("name") if operation else None
        return _precision(message, (about.operations.get(name, name),) if name else (), about)
    for error in errors:
        if profile := _of_profile(error, about):
            return profile
    if workspace.is_out_of_memory(errors):
        return _of_workspace(errors, about)
    free = about.free_bytes
    if free is not None and free < _LITTLE_BYTES and _UNSPECIFIC.search(errors[-1]):
        return StageFailure(
            Reason.BUILD_OUT_OF_MEMORY,
            f"{about.title} cannot build the engine in the {format_bytes(free)} that are free on the"
            f" device: {sentence(errors[-1])}",
            remedy="free device memory: another process uses the device too",
        )
    return StageFailure(
        Reason.BUILD_FAILED,
        f"{about.title} parses the model but cannot build it for {about.target}:"
        f" {sentence(errors[-1])}",
    )


def _precise(messages: Sequence[str]) -> str | None:
    return next(
        (message for message in messages for sign in _PRECISION if sign.search(message)), None
    )


def _precision(message: str, nodes: tuple[str, ...], about: Circumstances) -> StageFailure:
    at = f" at {name_nodes(list(nodes))}" if nodes else ""
    return StageFailure(
        Reason.PRECISION_UNSUPPORTED,
        f"{about.title} does not build this precision for {about.target}{at}: {sentence(message)}",
        nodes=nodes,
        remedy=next(remedy for sign, remedy in _PRECISION.items() if sign.search(message)),
    )


def _of_profile(text: str, about: Circumstances) -> StageFailure | None:
    message = sentence(text)
    for reason, signs in (
        (Reason.SHAPE_PROFILE_MISSING, _MISSING),
        (Reason.SHAPE_PROFILE_INVALID, _INVALID),
    ):
        for sign in signs:
            if match := sign.search(message):
                named = match.groupdict().get("name")
                inputs = named or ", ".join(about.inputs) or "unknown"
                return StageFailure(
                    reason, f"{about.title} refuses the sizes of input {inputs}: {message}"
                )
    if _SIZES.search(text):
        return StageFailure(
            Reason.SHAPE_PROFILE_INVALID,
            f"{about.title} finds that the sizes do not fit the model:"
            f" {', '.join(about.inputs) or 'fixed ones'}: {message}",
        )
    return None


def _of_workspace(errors: Sequence[str], about: Circumstances) -> StageFailure:
    size = workspace.find_requested_bytes(errors)
    needs = f"a workspace of {size} bytes" if size is not None else "more workspace"
    allowed = (
        f"spec.build.workspace allows {format_bytes(about.workspace_bytes)}"
        if about.workspace_bytes is not None
        else "the device does not have that much free memory"
    )
    return StageFailure(
        Reason.BUILD_OUT_OF_MEMORY,
        f"building the engine with {about.title} needs {needs}, and {allowed}",
        remedy="raise spec.build.workspace, or free device memory",
    )


def _without_device(answer: BuildResult, about: Circumstances) -> StageFailure:
    if not _cuda_codes(answer.errors):
        return StageFailure(
            Reason.BUILD_FAILED, f"{about.title} cannot build the model and gives no reason"
        )
    return without_driver(about.title, answer.errors)


def without_driver(title: str, errors: Sequence[str]) -> StageFailure:
    """Return the failure of a library that cannot use the device, with what it logged."""
    if lacking := _lacks_kernels(title, errors):
        return lacking
    too_old = _DRIVER_TOO_OLD in _cuda_codes(errors)
    why = sentence(errors[-1]) if errors else "it gives no reason"
    return StageFailure(
        Reason.DRIVER_TOO_OLD if too_old else Reason.DRIVER_MISSING,
        f"{title} cannot use the device: {why}",
    )


def creates_nothing(what: str, title: str, errors: Sequence[str]) -> StageFailure:
    """Return the failure of a library that returns nothing where it should create `what`, with what it logged."""
    if any(sign in error for error in errors for sign in _NO_HOST_MEMORY):
        return out_of_memory(f"building the engine with {title}")
    if lacking := _lacks_kernels(title, errors):
        return lacking
    if _cuda_codes(errors):
        return without_driver(title, errors)
    why = sentence(errors[-1]) if errors else "it gives no reason"
    return StageFailure(Reason.BUILD_FAILED, f"{title} creates no {what}: {why}")


def _lacks_kernels(title: str, errors: Sequence[str]) -> StageFailure | None:
    match = next(filter(None, map(_KERNELS.search, errors)), None)
    if match is None:
        return None
    return StageFailure(
        Reason.PROVIDER_MISSING,
        f"{title} in this image builds no engine for the device: it has no {match['name']}",
        remedy="use an image with NVIDIA's packages of TensorRT (docs/images.md), or choose another backend in spec.backends",
    )


def _cuda_codes(errors: Sequence[str]) -> set[str]:
    return {code for error in errors for match in _CUDA.findall(error) for code in match}


def _without_folder(text: str) -> str:
    return re.sub(r"(?:/[\w.@-]+)+/([\w.@-]+)", r"\1", sentence(text))
