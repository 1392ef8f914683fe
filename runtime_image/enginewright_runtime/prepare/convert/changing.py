"""The changes themselves, as child processes make them: a model's file in, a changed one's out.

Each returns None if there is nothing to do.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, Final, Generic, ParamSpec

from enginewright.contract.manifest import Change
from enginewright.contract.reasons import Reason
from enginewright.contract.report import name_nodes
from enginewright.contract.task import Recipe
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.inference import Sizes
from enginewright_runtime.graph.scoped.scopes import Scope
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert import batch_norms, simplifying, translating
from enginewright_runtime.prepare.convert.biases import fold_biases
from enginewright_runtime.prepare.convert.ir_versions import forget_annotations
from enginewright_runtime.prepare.convert.planning import Action, plan

_MOST_NODES: Final = 100  # kept in a change
P = ParamSpec("P")  # of what a pass is given besides files


@dataclass(frozen=True)
class Changed:
    """What was done to a model, and what that leaves."""

    changes: tuple[Change, ...]
    shape_nodes: tuple[str, ...]  # labels of shape arithmetic in the changed model


@dataclass(frozen=True)
class Pass(Generic[P]):
    """One change that can be made to a model."""

    doing: str  # for messages
    # reads a model's file and writes another beside it; None: there is nothing to do
    function: Callable[Concatenate[Path, Path, P], Changed | None]
    own_weights: bool = False  # whether it writes external data of its own


def _change(kind: str, message: str, nodes: Sequence[str] = ()) -> Change:
    return Change(kind=kind, message=message, nodes=tuple(nodes)[:_MOST_NODES])


def _saved(model: ModelProto, out: Path, changes: Sequence[Change]) -> Changed | None:
    """Save the model if it was changed."""
    if not changes:
        return None
    save(model, out)
    return Changed(tuple(changes), shape_nodes(model))


def change_versions(source: Path, out: Path, wanted: Recipe) -> Changed | None:
    """Do what `plan` says.

    Raises:
        StageFailure: ConversionFailed, naming the nodes that have no equivalent.
    """
    model = graphs.parse(source)
    steps = plan(model, wanted).steps
    target = next((step.opset for step in steps if step.opset is not None), None)
    changes = [] if target is None else _translate(model, target, wanted)
    for step in steps:
        if step.action is Action.IR_VERSION and step.ir_version is not None:
            version = model.ir_version
            forget_annotations(model, step.ir_version)
            model.ir_version = step.ir_version
            why = (
                "it uses nothing newer" if step.ir_version < version else f"opset {target} needs it"
            )
            changes.append(
                _change("ir-version", f"IR version {version} set to {step.ir_version}: {why}")
            )
    return _saved(model, out, changes)


def _translate(model: ModelProto, target: int, recipe: Recipe) -> list[Change]:
    opset = graphs.default_opset(model) or 0
    try:
        done = translating.translate(model, target)
    except translating.TranslationError as error:
        label, why = next(iter(error.refused.items()))
        raise StageFailure(
            Reason.CONVERSION_FAILED,
            f"opset {opset} cannot be converted to {target}: {name_nodes(list(error.refused))}; of"
            f" {label}: {why}",
            nodes=tuple(error.refused),
            remedy="raise spec.targetOpset or leave it out"
            if recipe.target_opset is not None
            else f"export with opset {target}",
        ) from error
    changes = _expansion(done, target)
    if done.rewritten:
        message = (
            f"wrote {counted(len(done.rewritten), 'node')} in the words of opset {target}:"
            f" {name_nodes(done.rewritten)}"
        )
        changes.append(_change("opset", message, done.rewritten))
    if done.converted:
        message = (
            f"converted opset {opset} to {target}: {counted(len(done.converted), 'node')} whose"
            " operator has another version there"
        )
        changes.append(_change("opset", message, done.converted))
    elif opset != target:
        same = "" if changes else ", under which every node means the same"
        changes.append(_change("opset", f"opset {opset} set to {target}{same}"))
    return changes


def _expansion(done: translating.Done, opset: int | None) -> list[Change]:
    operators = sorted(Counter(done.expanded.values()).items())
    nodes = ", ".join(counted(count, f"{operator} node") for operator, count in operators)
    message = f"expanded {nodes} into operators of opset {opset}"
    return [_change("expand", message, tuple(done.expanded))] if operators else []


def expand(source: Path, out: Path, operators: Sequence[str]) -> Changed | None:
    """Replace the nodes of these operators by their operators' bodies, if all can be."""
    model = graphs.parse(source)
    try:
        done = translating.expand(model, operators)
    except translating.TranslationError:
        return None
    return _saved(model, out, _expansion(done, graphs.default_opset(model)))


def take_branches(source: Path, out: Path, sizes: Sizes) -> Changed | None:
    """Take the branches of Ifs whose condition is constant."""
    model = graphs.parse(source)
    taken = take_constant_branches(model, sizes)
    message = (
        f"took the branch that is always taken of {counted(len(taken), 'If node')}:"
        f" {name_nodes(taken)}"
    )
    return _saved(model, out, [_change("simplify", message, taken)] if taken else [])


def dequantize_biases(source: Path, out: Path) -> Changed | None:
    """Make numbers of biases that are quantised to 32-bit integers."""
    model = graphs.parse(source)
    folded = fold_biases(model, source.parent)
    message = (
        f"made numbers of {counted(len(folded), 'bias node')} in 32-bit integers, which TensorRT"
        f" does not take: {name_nodes(folded)}"
    )
    return _saved(model, out, [_change("simplify", message, folded)] if folded else [])


def prepare_precision(source: Path, out: Path, *, quantized: bool) -> Changed | None:
    """Fold batch normalisations, and make initializers of weights."""
    model = graphs.parse(source)
    changes: list[Change] = []
    folded = batch_norms.fold(model, source.parent)
    if nodes := folded.into_convolutions:
        message = (
            f"folded {counted(len(nodes), 'batch normalisation')} into convolutions, ahead of a"
            " lower precision"
        )
        changes.append(_change("fold-batch-norm", message, nodes))
    if nodes := folded.into_arithmetic:
        message = (
            f"wrote {counted(len(nodes), 'batch normalisation')} as a multiplication and an addition,"
            f" since a half does not hold the parameters: {name_nodes(nodes)}"
        )
        changes.append(_change("fold-batch-norm", message, nodes))
    if quantized and (moved := batch_norms.constants_to_initializers(model)):
        message = (
            f"made initializers of {counted(moved, 'Constant node')}, where quantisers look for"
            " weights"
        )
        changes.append(_change("simplify", message))
    return _saved(model, out, changes)


def simplify(source: Path, out: Path) -> Changed | None:
    """Fold what is constant, if that leaves fewer nodes, and none of a domain that was not there.

    Raises:
        SessionError: ONNX Runtime refuses the model.
    """
    model = graphs.parse(source)
    changed = simplifying.simplify(source, out)
    before, after = (sum(1 for _ in graphs.walk_nodes(each)) for each in (model, changed))
    strangers = _domains(changed) - _domains(model) - STANDARD
    if after >= before or strangers:
        return None
    # what is declared stays, where ONNX Runtime knows better
    for field in ("input", "output"):
        declared = getattr(model.graph, field)
        ours = getattr(changed.graph, field)
        del ours[:]
        ours.extend(declared)
    Scope(changed.graph).remove_unused()
    message = f"folded what is constant: {before} nodes became {after}"
    return _saved(changed, out, [_change("simplify", message)])


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in graphs.walk_nodes(model)}


# What `stage` may do to a model, in its order; it proves each of them before it keeps what was made.
CHANGE_VERSIONS: Final = Pass("converting the model", change_versions)
PREPARE_PRECISION: Final = Pass("folding batch normalisations", prepare_precision)
TAKE_BRANCHES: Final = Pass("taking constant branches", take_branches)
DEQUANTIZE_BIASES: Final = Pass("dequantising biases", dequantize_biases)
EXPAND: Final = Pass("expanding operators", expand)
SIMPLIFY: Final = Pass("folding what is constant", simplify, own_weights=True)
