"""Generated models with nested subgraphs, whose names are shared, captured and, optionally, shadowed."""

from typing import Any, Final

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

POOL: Final = tuple("abcdefghijkl")
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X: Final = np.array([1.5, -2.0], np.float32)
_DOMAIN: Final = "own"


def _value(name: str, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, [None] if kind == FLOAT else [])


def _function() -> FunctionProto:
    """Return a function that uses names of the pool for values of its own."""
    nodes = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Add", ["b", "b"], ["c"])]
    opset = [helper.make_opsetid("", 17)]
    return helper.make_function(_DOMAIN, "Twice", ["a"], ["c"], nodes, opset)


class _Drawing:
    """Draws one model."""

    def __init__(self, draw: st.DrawFn, *, hides: bool) -> None:
        self._draw = draw
        self._hides = hides

    def _of(self, choices: list[str]) -> str:
        return self._draw(st.sampled_from(choices))

    def body(
        self, name: str, around: list[str], depth: int, state: str = "", *given: Any
    ) -> GraphProto:
        """Return a graph whose last value is its output; `given` are its inputs."""
        names = [item for item in POOL if item not in around]
        if self._hides:  # what a body makes itself, it cannot read from around it
            names = sorted(self._draw(st.sets(st.sampled_from(POOL), min_size=6)))
            around = [item for item in around if item not in names]
        own = [state] if state else []
        weights = []
        nodes: list[NodeProto] = []
        if self._draw(st.booleans()):
            own.append(self._name(own, names))
            weights.append(numpy_helper.from_array(X * len(own), own[-1]))
        for _ in range(self._draw(st.integers(1, 3))):
            made = self._name(own, names)
            nodes.append(self._node(made, [*own, *around], depth))
            own.append(made)
        last = self._name(own, names)
        nodes.append(helper.make_node("Add", [state or "x", own[-1]], [last]))
        outputs = [_value("go_on" + str(depth), BOOL)] if len(given) == 2 else []
        if outputs:
            nodes.append(helper.make_node("Identity", [given[1].name], [outputs[0].name]))
        inputs = [*given, _value(state)] if state else []
        return helper.make_graph(nodes, name, inputs, [*outputs, _value(last)], weights)

    def _name(self, own: list[str], names: list[str]) -> str:
        free = [name for name in names if name not in own]
        return self._of(free) if free else f"{own[-1]}_"

    def _node(self, made: str, seen: list[str], depth: int) -> NodeProto:
        kinds = ["Add", "Neg", "Twice", *(["If", "Loop", "Scan"] if depth else [])]
        first = self._of(seen)
        state = f"state{depth}"
        match self._of(kinds):
            case "If":
                branches = {
                    item: self.body(item, seen, depth - 1)
                    for item in ("then_branch", "else_branch")
                }
                condition = self._of(["yes", "no"])
                return helper.make_node("If", [condition], [made], **branches)
            case "Loop":
                count, go = _value(f"n{depth}", INT), _value(f"go{depth}", BOOL)
                body = self.body("loop", seen, depth - 1, state, count, go)
                return helper.make_node("Loop", ["two", "yes", first], [made], body=body)
            case "Scan":
                body = self.body("scan", seen, depth - 1, state)
                body.input.append(_value(f"element{depth}"))
                return helper.make_node(
                    "Scan", [first, "steps"], [made], body=body, num_scan_inputs=1
                )
            case "Twice":
                return helper.make_node("Twice", [first], [made], domain=_DOMAIN)
            case "Neg":
                return helper.make_node("Neg", [first], [made])
            case _:
                return helper.make_node("Add", [first, self._of(seen)], [made])


@st.composite
def draw_nested(draw: st.DrawFn, *, hides: bool = False) -> ModelProto:
    """Draw a model over `x`; with `hides`, bodies may use names of values around them for their own."""
    graph = _Drawing(draw, hides=hides).body("main", ["x"], 2)
    graph.input.append(_value("x"))
    constants = {"yes": True, "no": False, "two": np.int64(2), "steps": X}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(constant), name) for name, constant in constants.items()
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[_function()], ir_version=9)


def answers(model: ModelProto) -> Any:
    """Return the outputs of ONNX's reference evaluator."""
    outputs: Any = ReferenceEvaluator(model).run(None, {"x": X})
    return outputs[0]


def is_valid(model: ModelProto) -> bool:
    """Return whether ONNX's checker accepts a model."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True
