"""The changes themselves, as child processes make them: a model's file in, a changed one's out.

Each returns `changes` and the `shape_nodes` of the changed model, or None if there is nothing to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.manifest import Change
from enginewright.contract.reasons import Reason
from enginewright.contract.report import name_nodes
from enginewright.contract.task import Recipe
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.branches import remove_unused, take_constant_branches
from enginewright_runtime.graph.schemas import STANDARD
from enginewright_runtime.graph.shape_nodes import shape_nodes
from enginewright_runtime.graph.storage import save
from enginewright_runtime.prepare.convert import batch_norms, simplifying, translating
from enginewright_runtime.prepare.convert.biases import fold_biases
from enginewright_runtime.prepare.convert.ir_versions import forget_annotations
from enginewright_runtime.prepare.convert.planning import Action, plan

_MOST_NODES: Final = 100  # kept in a change


@dataclass
class _Told:
    changes: list[Change]

    def add(self, kind: str, message: str, nodes: Sequence[str] = ()) -> None:
        self.changes.append(Change(kind=kind, message=message, nodes=tuple(nodes)[:_MOST_NODES]))

    def answer(self, model: ModelProto, out: str) -> dict[str, Any]:
        """Save the model; return what was done."""
        save(model, Path(out))
        return {
            "changes": [change.model_dump(mode="json") for change in self.changes],
            "shape_nodes": list(shape_nodes(model)),
        }


def change_versions(*, source: str, out: str, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """Do what `plan` says; write the model to `out`.

    Raises:
        StageFailure: ConversionFailed, naming the nodes that have no equivalent.
    """
    model = graphs.parse(Path(source))
    wanted = Recipe.model_validate(recipe)
    told = _Told([])
    opset = graphs.default_opset(model) or 0
    steps = plan(model, wanted).steps
    target = next((step.opset for step in steps if step.opset is not None), None)
    if target is not None:
        _translate(model, opset, target, wanted, told)
    for step in steps:
        if step.action is Action.IR_VERSION and step.ir_version is not None:
            version = model.ir_version
            forget_annotations(model, step.ir_version)
            model.ir_version = step.ir_version
            why = (
                "it uses nothing newer" if step.ir_version < version else f"opset {target} needs it"
            )
            told.add("ir-version", f"IR version {version} set to {step.ir_version}: {why}")
    return told.answer(model, out)


def _translate(model: ModelProto, opset: int, target: int, recipe: Recipe, told: _Told) -> None:
    try:
        done = translating.translate(model, target)
    except translating.TranslationError as error:
        label, words = next(iter(error.refused.items()))
        asked = (
            "raise spec.targetOpset or leave it out"
            if recipe.target_opset is not None
            else f"export with opset {target}"
        )
        raise StageFailure(
            Reason.CONVERSION_FAILED,
            f"opset {opset} cannot be converted to {target}: {name_nodes(list(error.refused))}; of"
            f" {label}: {words}",
            nodes=tuple(error.refused),
            remedy=asked,
        ) from error
    if done.expanded:
        told.add("expand", _expanded(done, f"opset {target}"), tuple(done.expanded))
    if done.rewritten:
        told.add(
            "opset",
            f"wrote {counted(len(done.rewritten), 'node')} in the words of opset {target}:"
            f" {name_nodes(done.rewritten)}",
            done.rewritten,
        )
    if done.converted:
        told.add(
            "opset",
            f"converted opset {opset} to {target}: {counted(len(done.converted), 'node')} whose"
            " operator has another version there",
            done.converted,
        )
    elif opset != target and not done.expanded and not done.rewritten:
        told.add("opset", f"opset {opset} set to {target}, under which every node means the same")
    elif opset != target:
        told.add("opset", f"opset {opset} set to {target}")


def _expanded(done: translating.Done, into: str) -> str:
    operators: dict[str, int] = {}
    for operator in done.expanded.values():
        operators[operator] = operators.get(operator, 0) + 1
    nodes = ", ".join(
        f"{counted(count, f'{operator} node')}" for operator, count in sorted(operators.items())
    )
    return f"expanded {nodes} into operators of {into}"


def expand(*, source: str, out: str, operators: Sequence[str]) -> dict[str, Any] | None:
    """Replace the nodes of these operators by their operators' bodies, if all can be."""
    model = graphs.parse(Path(source))
    told = _Told([])
    try:
        done = translating.expand(model, operators)
    except translating.TranslationError:
        return None
    told.add(
        "expand", _expanded(done, f"opset {graphs.default_opset(model)}"), tuple(done.expanded)
    )
    return told.answer(model, out)


def take_branches(
    *, source: str, out: str, sizes: Mapping[str, Sequence[int | None]]
) -> dict[str, Any] | None:
    """Take the branches of Ifs whose condition is constant."""
    model = graphs.parse(Path(source))
    taken = take_constant_branches(model, sizes)
    if not taken:
        return None
    told = _Told([])
    told.add(
        "simplify",
        f"took the branch that is always taken of {counted(len(taken), 'If node')}:"
        f" {name_nodes(taken)}",
        taken,
    )
    return told.answer(model, out)


def dequantize_biases(*, source: str, out: str) -> dict[str, Any] | None:
    """Make numbers of biases that are quantised to 32-bit integers."""
    path = Path(source)
    model = graphs.parse(path)
    folded = fold_biases(model, path.parent)
    if not folded:
        return None
    told = _Told([])
    told.add(
        "simplify",
        f"made numbers of {counted(len(folded), 'bias node')} in 32-bit integers, which TensorRT"
        f" does not take: {name_nodes(folded)}",
        folded,
    )
    return told.answer(model, out)


def prepare_precision(*, source: str, out: str, quantized: bool) -> dict[str, Any] | None:
    """Fold batch normalisations, and make initializers of weights."""
    path = Path(source)
    model = graphs.parse(path)
    told = _Told([])
    folded = batch_norms.fold(model, path.parent)
    if folded.into_convolutions:
        told.add(
            "fold-batch-norm",
            f"folded {counted(len(folded.into_convolutions), 'batch normalisation')} into"
            " convolutions, ahead of a lower precision",
            folded.into_convolutions,
        )
    if folded.into_arithmetic:
        told.add(
            "fold-batch-norm",
            f"wrote {counted(len(folded.into_arithmetic), 'batch normalisation')} as a"
            " multiplication and an addition, since a half does not hold the parameters:"
            f" {name_nodes(folded.into_arithmetic)}",
            folded.into_arithmetic,
        )
    if quantized and (moved := batch_norms.constants_to_initializers(model)):
        told.add(
            "simplify",
            f"made initializers of {counted(moved, 'Constant node')}, where quantisers look for"
            " weights",
        )
    return told.answer(model, out) if told.changes else None


def simplify(*, source: str, out: str) -> dict[str, Any] | None:
    """Fold what is constant, if that leaves fewer nodes, and none of a domain that was not there.

    Raises:
        SessionError: ONNX Runtime refuses the model.
    """
    path = Path(source)
    model = graphs.parse(path)
    changed = simplifying.simplify(path, Path(out))
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
    remove_unused(changed.graph)
    told = _Told([])
    told.add("simplify", f"folded what is constant: {before} nodes became {after}")
    return told.answer(changed, out)


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in graphs.walk_nodes(model)}
