"""Which parts of a model the library's parser supports; runs in a child process, as `native` does."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import ModelProto

from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import Cutter, Part, TensorType
from enginewright_runtime.graph.scoped.scopes import Scope
from enginewright_runtime.graph.scoped.value_sizes import find_tensors_sized_by_values
from enginewright_runtime.tensorrt import flavor as flavors
from enginewright_runtime.tensorrt.native import (
    logger_of,
    open_builder,
    open_network,
    open_parser,
    parser_errors,
)
from enginewright_runtime.tensorrt.plugins import load as load_libraries
from enginewright_runtime.tensorrt.results import ParserError, SupportedParts

_MAX_QUERIES: Final = 1000  # of the parser, for parts of one model
_UNNAMED: Final = frozenset({"", "?"})  # exporters name all dynamic dimensions "?"
_BRANCHES: Final = "(If)"  # end of a label


def partition(
    *,
    backend: str,
    version: str,
    model: Path,
    types: Mapping[str, TensorType],
    log: Path,
    plugins: Sequence[Path],
) -> SupportedParts:
    """Find the parts of a model that the parser supports, as ONNX Runtime's TensorRT provider does.

    The subgraphs that the parser returns for an unsupported model are only candidates: each is
    extracted and parsed again, until the parser supports it or returns nothing smaller. `types` are
    those of every tensor, as `tensors.types` returns them; other arguments as in `native.build`. No part
    gets a tensor from outside whose sizes depend on the values of inputs: its profile would be what they
    happened to be with a golden sample, and engines fail with any other size.
    """
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    proto = onnx.load(model, load_external_data=False)
    with log.open("a") as sink:
        logger = logger_of(trt, sink)
        builder = open_builder(trt, flavor, logger)
        load_libraries(trt, logger, plugins)

        def ask(part: ModelProto) -> _Answer:
            network = open_network(trt, flavor, logger, builder)
            parser = open_parser(trt, flavor, logger, network)
            supported = parser.supports_model_v2(part.SerializeToString(), str(model))
            return _Answer(parser, network, supported=bool(supported))

        return _Partitioner(ask, proto, types).run()


@dataclass(frozen=True)
class _Answer:
    """The parser's answer for a part."""

    parser: Any  # NVIDIA's
    network: Any  # NVIDIA's, which must live as long as the parser
    supported: bool


class _Partitioner:
    def __init__(
        self,
        ask: Callable[[ModelProto], _Answer],
        proto: ModelProto,
        types: Mapping[str, TensorType],
    ) -> None:
        self._ask_parser = ask
        self._proto = proto
        self._cutter = Cutter(proto, types)
        self._queries = _MAX_QUERIES
        self._scope = Scope(proto.graph)
        self._order = self._scope.order() or [*range(len(proto.graph.node))]
        self._place = {index: place for place, index in enumerate(self._order)}
        self._unbounded = _find_unbounded(proto, types)

    def run(self) -> SupportedParts:
        parts: list[list[int]] = []
        errors: list[ParserError] | None = None
        refused: list[ParserError] = []
        left_out: set[int] = set()
        pending = [graph.computing(self._proto, self._order)]
        while pending and self._queries > 0:
            candidate = pending.pop()
            part = self._cutter.part(candidate)
            if part is None:
                continue
            answer = self._ask(part)
            if errors is None:
                errors = _errors_of(answer.parser, part)
            if answer.supported:
                unbounded = self._find_unbounded(part, candidate)
                if unbounded:
                    pending += self._split_around(candidate, unbounded)
                    left_out |= unbounded
                else:
                    parts.append(candidate)
                continue
            smaller = self._find_subgraphs(answer.parser, part, candidate)
            if not smaller:
                culprits = self._find_culprits(candidate)
                refused += culprits
                smaller = self._split_around(candidate, {error.node for error in culprits})
            pending += smaller
        named = [error for error in errors or () if error.is_named or not refused]
        return SupportedParts(
            tuple(map(tuple, map(sorted, sorted(parts)))),
            (*named, *refused),
            tuple(sorted(left_out)),
        )

    def _ask(self, part: Part) -> _Answer:
        self._queries -= 1
        return self._ask_parser(part.model)

    def _find_subgraphs(
        self,
        parser: Any,  # noqa: ANN401 - NVIDIA's parser
        part: Part,
        candidate: Sequence[int],
    ) -> list[list[int]]:
        subgraphs = []
        for index in range(parser.num_subgraphs):
            origins = map(part.origin, parser.get_subgraph_nodes(index))
            smaller = graph.computing(self._proto, [node for node in origins if node is not None])
            if smaller and len(smaller) < len(candidate):
                subgraphs.append(smaller)
        return subgraphs

    def _find_unbounded(self, part: Part, candidate: Sequence[int]) -> set[int]:
        """Return the nodes of a part that need an input whose sizes depend on values, or what comes of one."""
        unbounded = self._unbounded.intersection(part.inputs)
        nodes: set[int] = set()
        for index in sorted(candidate, key=self._place.__getitem__):
            node = self._scope.nodes[index]
            if not unbounded.isdisjoint(value.name for value in node.consumes()):
                nodes.add(index)
                unbounded |= self._unbounded.intersection(item.name for item in node.produces())
        return nodes

    def _find_culprits(self, candidate: Sequence[int]) -> list[ParserError]:
        """Return the errors of nodes that make the parser refuse the candidate without naming any.

        The last node of its shortest prefix that is refused is one; others with its operator are those
        that are refused alone.
        """
        nodes = sorted(candidate, key=self._place.__getitem__)
        supported, refused = 0, len(nodes)  # lengths of prefixes
        while refused - supported > 1 and self._queries > 0:
            middle = (supported + refused) // 2
            if self._find_error(nodes[:middle]) is None:
                supported = middle
            else:
                refused = middle
        culprit = nodes[refused - 1]
        error = self._find_error(nodes[:refused])
        if error is None or self._queries <= 0:
            return []
        operator = self._proto.graph.node[culprit].op_type
        alike = [
            (index, self._find_error([index]))
            for index in nodes[refused:]
            if self._proto.graph.node[index].op_type == operator and self._queries > 0
        ]
        return [
            self._name(index, refusal)
            for index, refusal in [(culprit, error), *alike]
            if refusal is not None
        ]

    def _find_error(self, nodes: Sequence[int]) -> ParserError | None:
        """Return why the parser refuses these nodes; None if it does not, or if they are no part."""
        part = self._cutter.part(nodes)
        if part is None:
            return None
        answer = self._ask(part)
        errors = parser_errors(answer.parser)
        return None if answer.supported or not errors else errors[0]

    def _name(self, index: int, error: ParserError) -> ParserError:
        node = self._proto.graph.node[index]
        return replace(error, node=index, name=node.name, operator=node.op_type)

    def _split_around(
        self, candidate: Sequence[int], culprits: AbstractSet[int | None]
    ) -> list[list[int]]:
        """Return the candidate without these nodes, in groups between which no values go back and forth."""
        outside = set(range(len(self._proto.graph.node))) - ({*candidate} - culprits)
        nodes = self._scope.nodes
        place = {node: index for index, node in enumerate(nodes)}
        depths: dict[int, int] = {}  # the most nodes outside on a path to the node
        groups: dict[int, list[int]] = {}
        for index in self._order:
            producers = {
                place[value.producer]
                for value in nodes[index].consumes()
                if value.producer in place
            }
            depths[index] = max(
                (depths.get(item, 0) + (item in outside) for item in producers), default=0
            )
            if index not in outside:
                groups.setdefault(depths[index], []).append(index)
        return [*groups.values()] if culprits else []


def _errors_of(parser: Any, part: Part) -> list[ParserError]:  # noqa: ANN401 - NVIDIA's parser
    return [
        replace(error, node=None if error.node is None else part.origin(error.node))
        for error in parser_errors(parser)
    ]


def _find_unbounded(proto: ModelProto, types: Mapping[str, TensorType]) -> set[str]:
    """Return the tensors of which a size depends on values, and so is not bounded by the inputs' sizes."""
    named = {
        dimension.dim_param
        for value in proto.graph.input
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param not in _UNNAMED
    }

    def is_bounded(name: str, cause: str) -> bool:
        sizes = [size for size in types[name].dimensions if not isinstance(size, int)]
        # of an If, both branches may have the sizes of inputs
        return not sizes or (cause.endswith(_BRANCHES) and named.issuperset(sizes))

    causes = find_tensors_sized_by_values(proto)
    return {name for name, cause in causes.items() if name in types and not is_bounded(name, cause)}
