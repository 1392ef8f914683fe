"""The passes of conversion, and `run_pass`, which runs one on a model's file in a child process."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias, get_args

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.manifest import Change
from enginewright_contract.reasons import Reason
from enginewright_contract.report import name_nodes
from enginewright_contract.task import Recipe
from onnx import ModelProto
from pydantic import Field
from typing_extensions import override

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.graph.raw import graphs, small_tensors
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.function_bodies import inline_functions
from enginewright_runtime.graph.scoped.inference import Sizes
from enginewright_runtime.graph.scoped.passes import (
    Keep,
    Needs,
    Pass,
    PassResult,
    Situation,
    change,
)
from enginewright_runtime.graph.scoped.scopes import Scope
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert import batch_norms, simplifying, translating
from enginewright_runtime.prepare.convert.biases import fold_biases
from enginewright_runtime.prepare.convert.ir_versions import remove_annotations
from enginewright_runtime.prepare.convert.planning import operators_with_bodies, plan

_HALVES: Final = frozenset({"FP16", "BF16"})
_QUANTIZED: Final = frozenset({"INT8", "FP8"})


class ChangeVersions(Pass):
    """Carries out `plan`: the versions and the form that the runtime needs, or that the spec requests."""

    doing = "converting the model"
    order = 10
    keep = Keep.MUST
    kind: Literal["change-versions"] = "change-versions"
    recipe: Recipe

    @override
    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:
        planned = plan(about.model, about.recipe)
        if planned.refusal is not None:
            raise StageFailure.of(planned.refusal, (planned.refusal,))
        if planned.is_needed:
            yield cls(recipe=about.recipe)

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        planned = plan(model, self.recipe)
        changes: list[Change] = []
        if planned.inline:
            count = small_tensors.inline(model, source.parent)
            message = (
                f"moved {format_count(count, 'small tensor')} from external data into the .onnx file:"
                " ONNX Runtime reads no sizes, axes or scales from external data"
            )
            changes.append(change("external-data", message))
        if planned.opset is not None:
            changes += _translate(model, planned.opset, self.recipe)
        if planned.ir_version is not None:
            version = model.ir_version
            remove_annotations(model, planned.ir_version)
            model.ir_version = planned.ir_version
            lower = planned.ir_version < version
            why = "it uses no newer feature" if lower else f"opset {planned.opset} needs it"
            message = f"IR version {version} set to {planned.ir_version}: {why}"
            changes.append(change("ir-version", message))
        return PassResult(tuple(changes))


class NameNodes(Pass):
    """Names nodes without names, to tell the shape arithmetic that CUDA leaves on the CPU from others."""

    doing = "naming nodes"
    order = 15
    needs = Needs(backends=frozenset({"cuda"}))
    keep = Keep.EQUAL
    kind: Literal["name-nodes"] = "name-nodes"

    @override
    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:
        if any(not node.name for node in graphs.walk_nodes(about.model)):
            yield cls()

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        taken = {node.name for node in graphs.walk_nodes(model)}
        numbers: Counter[str] = Counter()
        named = 0
        for node in graphs.walk_nodes(model):
            if node.name:
                continue
            while (name := f"{node.op_type}_{numbers[node.op_type]}") in taken:
                numbers[node.op_type] += 1
            node.name = name
            taken.add(name)
            named += 1
        message = f"named {format_count(named, 'node')} that had no name, to know where each runs"
        return PassResult((change("name", message),))


class PreparePrecision(Pass):
    """Inlines functions, folds batch normalizations, and turns constants into initializers, ahead of a lower precision."""

    doing = "folding batch normalizations"
    order = 20
    needs = Needs(precisions=_HALVES | _QUANTIZED)
    keep = Keep.EQUAL
    kind: Literal["prepare-precision"] = "prepare-precision"
    quantized: bool

    @override
    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:
        yield cls(quantized=bool(about.precisions & _QUANTIZED))

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        changes: list[Change] = []
        if count := inline_functions(model):
            message = f"inlined {format_count(count, 'function')}, ahead of a lower precision"
            changes.append(change("expand", message))
        folded = batch_norms.fold(model, source.parent)
        if nodes := folded.into_convolutions:
            message = (
                f"folded {format_count(len(nodes), 'batch normalisation')} into convolutions, ahead of a"
                " lower precision"
            )
            changes.append(change("fold-batch-norm", message, nodes))
        if nodes := folded.into_arithmetic:
            message = (
                f"replaced {format_count(len(nodes), 'batch normalisation')} by a multiplication and an"
                f" addition, since float16 cannot represent the parameters: {name_nodes(nodes)}"
            )
            changes.append(change("fold-batch-norm", message, nodes))
        if self.quantized and (moved := batch_norms.constants_to_initializers(model)):
            message = (
                f"turned {format_count(moved, 'Constant node')} into initializers, where quantisers look"
                " for weights"
            )
            changes.append(change("simplify", message))
        return PassResult(tuple(changes))


class TakeBranches(Pass):
    """Inlines the branches of Ifs whose condition is constant."""

    doing = "inlining constant branches"
    order = 30
    needs = Needs(operators=frozenset({"If"}))
    keep = Keep.BETTER
    kind: Literal["take-branches"] = "take-branches"
    sizes: Sizes  # as for `take_constant_branches`

    @override
    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:
        yield cls(sizes=about.sizes)

    @override
    @classmethod
    def keep_on(cls, backend: str) -> Keep:
        # the parser also accepts Ifs that the builder refuses: see docs/conversion.md
        return Keep.EQUAL if backend in COMPILED_BACKENDS else cls.keep

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        taken = take_constant_branches(model, self.sizes)
        message = f"inlined the constant branch of {format_count(len(taken), 'If node')}: {name_nodes(taken)}"
        return PassResult((change("simplify", message, taken),) if taken else ())


class DequantizeBiases(Pass):
    """Dequantizes biases that are stored as 32-bit integers."""

    doing = "dequantizing biases"
    order = 40
    needs = Needs(backends=frozenset(COMPILED_BACKENDS))
    keep = Keep.BETTER
    kind: Literal["dequantize-biases"] = "dequantize-biases"

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        folded = fold_biases(model, source.parent)
        message = (
            f"dequantised {format_count(len(folded), 'bias node')} in 32-bit integers, which TensorRT does"
            f" not support: {name_nodes(folded)}"
        )
        return PassResult((change("simplify", message, folded),) if folded else ())


class Expand(Pass):
    """Replaces all nodes of some operators by their operators' function bodies, if all have one."""

    doing = "expanding operators"
    order = 50
    keep = Keep.BETTER
    kind: Literal["expand"] = "expand"
    operators: tuple[str, ...]

    @override
    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:
        """Try first the refused operators together; then the others one by one.

        ONNX Runtime itself inlines the body of an unsupported operator and reports the nodes of the
        body, so an operator that needs expansion may not be among the refused ones.
        """
        bodied = operators_with_bodies(about.model)
        if named := sorted(bodied & about.refused):
            yield cls(operators=tuple(named))
        for operator in sorted(bodied - set(named)):
            yield cls(operators=(operator,))

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        try:
            done = translating.expand(model, self.operators)
        except translating.TranslationError:
            return PassResult()
        return PassResult(tuple(_expansion(done, graphs.default_opset(model))))


class Simplify(Pass):
    """Folds constants, if that leaves fewer nodes, and none of a new domain."""

    doing = "folding constants"
    order = 60
    needs = Needs(most_bytes=1 << 30)  # ONNX Runtime writes all weights again
    keep = Keep.BETTER
    own_weights: ClassVar[bool] = True
    kind: Literal["simplify"] = "simplify"

    @override
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        changed = simplifying.simplify(source, out)
        before, after = (sum(1 for _ in graphs.walk_nodes(proto)) for proto in (model, changed))
        new_domains = _domains(changed) - _domains(model) - STANDARD
        if after >= before or new_domains:
            return PassResult()
        # keep the declared interface, even if ONNX Runtime inferred more
        for field in ("input", "output"):
            ours = getattr(changed.graph, field)
            del ours[:]
            ours.extend(getattr(model.graph, field))
        model.CopyFrom(changed)
        Scope(model.graph).remove_unused()
        message = f"folded constants: {before} nodes became {after}"
        return PassResult((change("simplify", message),))


AnyPass: TypeAlias = (
    ChangeVersions
    | NameNodes
    | PreparePrecision
    | TakeBranches
    | DequantizeBiases
    | Expand
    | Simplify
)
PASSES: Final[tuple[type[AnyPass], ...]] = get_args(AnyPass)


def run_pass(
    rewrite: Annotated[AnyPass, Field(discriminator="kind")], source: Path, out: Path
) -> PassResult:
    """Run a pass on a model's file; write another, beside its weights, if the pass changed it."""
    model = graphs.parse(source)
    done = rewrite.change(model, source, out)
    if not done.changes:
        return done
    save(model, out)
    return replace(done, shape_nodes=shape_nodes(model))


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
            f"rewrote {format_count(len(done.rewritten), 'node')} for opset {target}:"
            f" {name_nodes(done.rewritten)}"
        )
        changes.append(change("opset", message, done.rewritten))
    if done.converted:
        message = (
            f"converted opset {opset} to {target}: {format_count(len(done.converted), 'node')} whose"
            " operator has a different version there"
        )
        changes.append(change("opset", message, done.converted))
    elif opset != target:
        same = "" if changes else ", in which every node has the same semantics"
        changes.append(change("opset", f"opset {opset} set to {target}{same}"))
    return changes


def _expansion(done: translating.Done, opset: int | None) -> list[Change]:
    operators = sorted(Counter(done.expanded.values()).items())
    nodes = ", ".join(format_count(count, f"{operator} node") for operator, count in operators)
    message = f"expanded {nodes} into operators of opset {opset}"
    return [change("expand", message, tuple(done.expanded))] if operators else []


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in graphs.walk_nodes(model)}
