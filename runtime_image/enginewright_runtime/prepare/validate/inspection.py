"""Reads a model and applies the rules, in a child process with limits: its author is not trusted.

A parser may need hundreds of bytes for two of the file, and rules visit every node and weight.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from enginewright_contract.base import Message
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.report import NAMED_NODES, Finding
from enginewright_contract.task import Recipe, ShapeProfile
from onnx import ModelProto, ValueInfoProto

from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.model_files import LARGEST_PROTOBUF
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.shapes import resolve
from enginewright_runtime.prepare.convert import planning
from enginewright_runtime.prepare.sizes.discovery.problem import is_switched
from enginewright_runtime.rules import names, registry, structure, table
from enginewright_runtime.rules.base import Subject
from enginewright_runtime.rules.text import printable, show
from enginewright_runtime.rules.view import ModelView

_SECONDS: Final = 900.0  # weights of a terabyte are read at a few gigabytes per second
_TOO_DEEP: Final = ("MaxDepth", "recursion", "too deep")  # in protobuf's messages
_NO_MEMORY: Final = "alloc"  # likewise: "Arena alloc failed"
_BY_REASON: Final = {
    Reason.OPSET_UNSUPPORTED: table.OPSET_TOO_NEW,
    Reason.IR_VERSION_UNSUPPORTED: table.IR_TOO_NEW,
    Reason.SHAPE_PROFILE_MISSING: table.SHAPES_MISSING,
    Reason.SHAPE_PROFILE_INVALID: table.SHAPES_INVALID,
}


class Inspection(Message):
    """The findings and facts known without loading the model."""

    findings: tuple[Finding, ...]
    opset: int = 0
    ir_version: int = 0
    nodes: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    ranked_outputs: tuple[str, ...] = ()  # outputs that declare a shape
    profiles: tuple[ShapeProfile, ...] = ()  # of the inputs whose sizes are known
    unsized: tuple[str, ...] = ()  # inputs with dynamic dimensions of unknown size
    unranked: tuple[str, ...] = ()  # inputs that declare no rank
    switched: bool = False  # whether the graph compares an input's value with constants
    converted: bool = False  # whether the runtime needs a model that `convert` changes

    @property
    def errors(self) -> list[Finding]:
        """Return the errors, except in spec.shapes: with any, loading the model finds nothing more."""
        shapes = {Reason.SHAPE_PROFILE_INVALID, Reason.SHAPE_PROFILE_MISSING}
        return [
            finding
            for finding in self.findings
            if finding.severity == "error" and finding.reason not in shapes
        ]


def inspect(path: Path, recipe: Recipe) -> Inspection:
    """Read the model at `path` and apply the rules; raises StageFailure if it cannot be read at all."""
    allowed = Limits.of_model(_SECONDS)
    return Call(inspect_here, "reading the model", allowed).run(path, recipe)


def inspect_here(path: Path, recipe: Recipe) -> Inspection:
    """Read the model and apply the rules. Called in a child process."""
    model, finding = read(path)
    if model is None or finding is not None:
        return Inspection(findings=() if finding is None else (finding,))
    return _judge(model, path.parent, recipe)


def read(path: Path) -> tuple[ModelProto | None, Finding | None]:
    """Parse a model without external data, or return why the rules cannot be applied; raises MemoryError."""
    if not path.is_file():  # reading a pipe would block
        return None, table.finding(table.NOT_A_MODEL, "the model is not a regular file")
    size = path.stat().st_size
    if size > LARGEST_PROTOBUF:
        message = f"the .onnx file has {format_bytes(size)}; protobuf's limit is 2 GiB"
        return None, table.finding(table.FILE_TOO_LARGE, message)
    try:
        model = graphs.parse(path)
    except graphs.UnparsableError as error:
        return None, _unparsable(size, str(error.__cause__))
    finding = _unfit(model, size)
    return (None, finding) if finding is not None else (model, None)


def _unfit(model: ModelProto, size: int) -> Finding | None:
    if not model.ir_version or not model.HasField("graph") or not model.graph.node:
        lacks = "IR version" if not model.ir_version else "nodes"
        message = f"the file of {format_bytes(size)} is not an ONNX model: it has no {lacks}"
        return table.finding(table.NOT_A_MODEL, message)
    if (hit := structure.oversize(model)) is not None:
        return table.TOO_MANY_NODES.finding(hit)
    if (hit := names.undecodable(model)) is not None:
        return table.NOT_TEXT.finding(hit)
    return None


def _unparsable(size: int, error: str) -> Finding:
    if _NO_MEMORY in error:
        raise MemoryError
    if any(item in error for item in _TOO_DEEP):
        message = "subgraphs are nested deeper than protobuf parsers accept"
        return table.finding(table.NESTED_TOO_DEEP, message)
    return table.finding(
        table.NOT_A_MODEL,
        f"the file of {format_bytes(size)} is not an ONNX model, or is truncated: its protobuf"
        " cannot be parsed",
    )


def _judge(model: ModelProto, folder: Path, recipe: Recipe) -> Inspection:
    inputs, outputs = graphs.inputs_of(model), graphs.outputs_of(model)
    tensors = {value.name for value in model.graph.input if value.type.HasField("tensor_type")}
    unranked = frozenset(tensors) - _find_ranked(model.graph.input)
    resolved = resolve(inputs, recipe.shapes, unranked)
    refusal, converted = _conversion(model, recipe)
    view = ModelView(model)
    subject = Subject(
        view=view,
        folder=folder,
        recipe=recipe,
        registry=registry.of_runtime(),
        inputs=inputs,
        outputs=outputs,
        profiles=resolved.profiles,
        converted=converted,
    )
    findings = [*refusal, *table.judge(subject), *_of_shapes(resolved.findings)]
    return Inspection(
        findings=tuple(findings),
        opset=graphs.default_opset(model) or 0,
        ir_version=model.ir_version,
        nodes=len(view.nodes),
        inputs=inputs,
        outputs=outputs,
        ranked_outputs=tuple(_find_ranked(model.graph.output)),
        profiles=resolved.profiles,
        unsized=resolved.unsized,
        unranked=tuple(sorted(unranked)),
        switched=is_switched(model, inputs),
        converted=converted,
    )


def _conversion(model: ModelProto, recipe: Recipe) -> tuple[list[Finding], bool]:
    """Return why the model cannot be converted, and whether the runtime needs it converted, not only spec.targetOpset."""
    refusal = planning.plan(model, recipe).refusal
    needed = planning.plan(model, recipe.model_copy(update={"target_opset": None}))
    return (
        [] if refusal is None else [_name_rule(refusal)]
    ), needed.is_needed or needed.refusal is not None


def _of_shapes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings on spec.shapes, merged to one per reason: several inputs may have one."""
    merged = []
    for reason in dict.fromkeys(finding.reason for finding in findings):
        alike = [finding for finding in findings if finding.reason is reason]
        causes = "; ".join(finding.cause for finding in alike[:NAMED_NODES])
        merged.append(_name_rule(alike[0].model_copy(update={"cause": causes})))
    return merged


def _find_ranked(values: Iterable[ValueInfoProto]) -> frozenset[str]:
    return frozenset(value.name for value in values if value.type.tensor_type.HasField("shape"))


def _name_rule(finding: Finding) -> Finding:
    """Return another module's finding with the name of its rule, in printable text."""
    update = {
        "rule": _BY_REASON[finding.reason].name,
        "cause": printable(finding.cause),
        "nodes": tuple(map(show, finding.nodes)),
    }
    return finding.model_copy(update=update)
