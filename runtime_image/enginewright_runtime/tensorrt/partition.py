"""Which parts of a model the library's parser supports; runs in a child process, as `native` does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx

from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import TensorType
from enginewright_runtime.tensorrt import flavor as flavors
from enginewright_runtime.tensorrt.native import (
    logger_of,
    network_flags,
    open_builder,
    parser_errors,
)
from enginewright_runtime.tensorrt.plugins import load as load_libraries
from enginewright_runtime.tensorrt.results import ParserError, SupportedParts

_MAX_QUERIES: Final = 1000  # of the parser, for parts of one model


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
    those of every tensor, as `tensors.types` returns them; other arguments as in `native.build`.
    """
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    proto = onnx.load(model, load_external_data=False)
    cutter = graph.Cutter(proto, types)
    parts: list[list[int]] = []
    errors: tuple[ParserError, ...] | None = None
    with log.open("a") as sink:
        logger = logger_of(trt, sink)
        builder = open_builder(trt, flavor, logger)
        load_libraries(trt, logger, plugins)
        pending = [graph.computing(proto, range(len(proto.graph.node)))]
        for _ in range(_MAX_QUERIES):
            if not pending:
                break
            candidate = pending.pop()
            part = cutter.part(candidate)
            if part is None:
                continue
            network = builder.create_network(network_flags(trt, flavor))
            parser = trt.OnnxParser(network, logger)
            supported = parser.supports_model_v2(part.model.SerializeToString(), str(model))
            if errors is None:
                errors = tuple(
                    replace(
                        parser_error,
                        node=None if parser_error.node is None else part.origin(parser_error.node),
                    )
                    for parser_error in parser_errors(parser)
                )
            if supported:
                parts.append(candidate)
                continue
            for index in range(parser.num_subgraphs):
                origins = map(part.origin, parser.get_subgraph_nodes(index))
                smaller = graph.computing(proto, [node for node in origins if node is not None])
                if smaller and len(smaller) < len(candidate):
                    pending.append(smaller)
    return SupportedParts(tuple(map(tuple, sorted(parts))), errors or ())
