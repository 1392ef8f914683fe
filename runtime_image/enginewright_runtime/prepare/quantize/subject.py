"""The model whose precision is to change: sorted, and with facts that passes need repeatedly."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from onnx import ModelProto, NodeProto, helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.scoped.passes import Needs, PassResult
from enginewright_runtime.graph.scoped.scopes import Names, Scope, rename_apart
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import translate
from enginewright_runtime.prepare.quantize.tensors import Array, Sink

# IR version since which initializers need not be inputs, and those that are inputs are not constant.
_FREE_INITIALIZERS: Final = 4


@dataclass(frozen=True)
class SourceModel:
    """A model parsed without external data; nodes are identified by index, since labels may repeat."""

    model: ModelProto
    folder: Path  # of its external data
    constants: Constants  # of the main graph
    shape_nodes: frozenset[str]  # labels of shape arithmetic

    @classmethod
    def load(cls, path: Path, opset: int | None = None) -> Self:
        """Parse a model, sort it, and convert it to at least `opset`; raises TranslationError."""
        model = graphs.parse(path)
        rename_apart(model)
        Scope(model.graph).sort()
        if opset is not None and (graphs.default_opset(model) or opset) < opset:
            translate(model, opset)
            least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
            model.ir_version = max(model.ir_version, least)
        _free_initializers(model)
        constants = Constants(model.graph, path.parent)
        return cls(model, path.parent, constants, frozenset(shape_nodes(model)))

    def label(self, index: int) -> str:
        """Return a node's label for messages."""
        return graphs.label(self.model.graph.node[index])


@dataclass(frozen=True)
class PrecisionPass(ABC):
    """Lowers the precision of a model, except of excluded nodes."""

    order: ClassVar[int]  # the first pass whose needs are met is run
    needs: ClassVar[Needs]
    widened: ClassVar[bool] = False  # whether it is proven in single precision, each result rounded
    subject: SourceModel

    @property
    def proof_level(self) -> str:
        """Return the graph optimization level of its proof, a key of `optimization.LEVELS`."""
        return "BASIC"

    @abstractmethod
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        """Lower `model`, a copy of the subject, in place, except the `excluded` nodes and their bodies."""

    def write(self, folder: Path, excluded: frozenset[int] = frozenset()) -> PassResult:
        """Lower the subject and write the result as `MODEL_NAME` into a new folder."""
        with Sink(folder, self.subject.model) as sink:
            model = graphs.copy_of(self.subject.model)
            done = self.change(model, sink, excluded)
            sink.write(model, self.subject.folder)
        return done


class ModelEditor:
    """A copy of a model to which nodes and weights with unique names are added."""

    def __init__(self, model: ModelProto, subject: SourceModel, sink: Sink) -> None:
        self.subject = subject
        self.sink = sink
        self.model = model
        self.names = Names(self.model)
        self.scope = Scope(self.model.graph)
        self.nodes = self.scope.nodes  # of the subject, by index

    def initializer(self, preferred: str, element: int, array: Array) -> str:
        """Add an initializer; return its name."""
        name = self.names.fresh(preferred)
        self.scope.add_weight(self.sink.tensor(name, element, array))
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        prefix: str,
        **attributes: Any,  # noqa: ANN401 - of the operator
    ) -> NodeProto:
        """Return a node for the graph, with a name that begins with `prefix`."""
        name = self.names.fresh(f"{prefix}/{operator}")
        return helper.make_node(operator, inputs, [output], name=name, **attributes)

    def weight(self, name: str) -> Array:
        """Return the value of a name that is known to be a constant of the main graph."""
        array = self.subject.constants.array(name)
        assert array is not None  # noqa: S101 - checked by the caller
        return array


def _free_initializers(model: ModelProto) -> None:
    """Give the model an IR version in which a new initializer need not be an input."""
    graph = model.graph
    if model.ir_version >= _FREE_INITIALIZERS:
        return
    constant = {tensor.name for tensor in graph.initializer}
    kept = [graphs.copy_of(item) for item in graph.input if item.name not in constant]
    del graph.input[:]
    graph.input.extend(kept)
    model.ir_version = _FREE_INITIALIZERS
