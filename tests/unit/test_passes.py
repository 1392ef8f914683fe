"""What passes declare: when they come, what they need, and that they cross to a child as they are."""

from pathlib import Path

import pytest
from enginewright_runtime.core.isolated import dump_arguments
from enginewright_runtime.graph.scoped.passes import Keep, Situation
from enginewright_runtime.prepare.convert.passes import (
    PASSES,
    AnyPass,
    ChangeVersions,
    DequantizeBiases,
    Expand,
    NameNodes,
    PreparePrecision,
    Simplify,
    TakeBranches,
    run_pass,
)
from onnx import ModelProto, helper
from pydantic import TypeAdapter

from tests.support.broken_models import build, value
from tests.support.converting import recipe

ALL: tuple[AnyPass, ...] = (
    ChangeVersions(recipe=recipe(target_opset=17)),
    NameNodes(),
    PreparePrecision(quantized=True),
    TakeBranches(sizes={"x": [1, None]}),
    DequantizeBiases(),
    Expand(operators=("Celu",)),
    Simplify(),
)


def model(operator: str = "Celu") -> ModelProto:
    return build(
        [helper.make_node(operator, ["x"], ["y"], name="n")], [value("x", 2)], [value("y", 2)]
    )


def useful(proto: ModelProto, **changes: object) -> list[str]:
    about = Situation(recipe(**changes), proto, {})
    return [kind.__name__ for kind in PASSES if kind.needs.are_met(about)]


def test_they_come_in_one_order() -> None:
    orders = [kind.order for kind in PASSES]
    assert len(set(orders)) == len(PASSES)
    first = min(PASSES, key=lambda kind: kind.order)
    assert (first, first.keep) == (ChangeVersions, Keep.MUST)
    assert [kind for kind in PASSES if kind.keep is Keep.MUST] == [first]


@pytest.mark.parametrize("rewrite", ALL, ids=lambda item: item.kind)
def test_a_child_is_given_the_same_pass(rewrite: AnyPass) -> None:
    given = dump_arguments(run_pass, rewrite, Path("in.onnx"), Path("out.onnx"))["rewrite"]
    assert TypeAdapter(type(rewrite)).validate_python(given) == rewrite


def test_needed_passes_are_listed() -> None:
    always = ["ChangeVersions", "Expand", "Simplify"]
    assert useful(model()) == always
    assert useful(model("If")) == ["ChangeVersions", "TakeBranches", *always[1:]]
    assert useful(model(), precision="FP16") == ["ChangeVersions", "PreparePrecision", *always[1:]]
    assert "PreparePrecision" not in useful(model(), precision="FP32")
    assert "DequantizeBiases" in useful(model(), backend="tensorrt")


def test_nodes_without_names_get_some_where_placement_is_by_name() -> None:
    """A pitch detector without names was refused on an H200 for shape arithmetic on the CPU."""
    names = ["", "Relu_0", ""]
    nodes = [
        helper.make_node("Relu", [before], [after], name=name)
        for before, after, name in zip("xab", "aby", names, strict=True)
    ]
    unnamed = build(nodes, [value("x", 2)], [value("y", 2)])
    assert "NameNodes" in useful(unnamed, backend="cuda")
    assert "NameNodes" not in useful(unnamed)
    assert list(NameNodes.to_try(Situation(recipe(backend="cuda"), unnamed, {})))
    done = NameNodes().change(unnamed, Path("in.onnx"), Path("out.onnx"))
    assert [node.name for node in unnamed.graph.node] == ["Relu_1", "Relu_0", "Relu_2"]
    (change,) = done.changes
    assert change.kind == "name"
    assert change.message == "named 2 nodes that had no name, to know where each runs"
    assert not list(NameNodes.to_try(Situation(recipe(backend="cuda"), unnamed, {})))


def test_large_weights_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginewright_runtime.graph.scoped.passes.size_bytes", lambda _: 1 << 31)
    assert useful(model()) == ["ChangeVersions", "Expand"]


def test_a_taken_branch_is_kept_for_engines_though_the_parser_takes_the_if() -> None:
    assert TakeBranches.keep_on("tensorrt") is Keep.EQUAL
    assert TakeBranches.keep_on("openvino") is Keep.BETTER
    assert Expand.keep_on("tensorrt") is Keep.BETTER


def test_refused_operators_are_expanded_first() -> None:
    proto = build(
        [
            helper.make_node("Celu", ["x"], ["c"], name="c"),
            helper.make_node("Softsign", ["c"], ["s"], name="s"),
            helper.make_node("HardSwish", ["s"], ["y"], name="h"),
        ],
        [value("x", 2)],
        [value("y", 2)],
        opset=18,
    )
    about = Situation(recipe(), proto, {}, refused=frozenset({"Softsign", "Conv"}))
    assert [expand.operators for expand in Expand.to_try(about)] == [
        ("Softsign",),
        ("Celu",),
        ("HardSwish",),
    ]
