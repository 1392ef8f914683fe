"""Which parts of a model the library's parser takes; runs in a child process, as all of `native` does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx

from enginewright_runtime.graph import parts as graph
from enginewright_runtime.tensorrt import flavor as flavors
from enginewright_runtime.tensorrt.native import logger_of, network_flags, parser_errors
from enginewright_runtime.tensorrt.plugins import load as load_libraries

_ASKS: Final = 1000  # of the parser for parts of one model


def partition(
    *,
    backend: str,
    version: str,
    model: str,
    types: Mapping[str, Any],
    log: str,
    plugins: Sequence[str],
) -> dict[str, Any]:
    """Find the parts of a model that the parser takes, as ONNX Runtime's TensorRT provider does.

    What the parser proposes for a model that it does not take whole is only a candidate: each is
    cut out and asked about again, until the parser takes it or proposes nothing smaller.

    Args:
        backend: a key of `FLAVORS`.
        version: that the library must have.
        model: the .onnx file.
        types: of every tensor, as `tensors.types` returns them.
        log: file that the library's messages are appended to.
        plugins: libraries with plug-ins.

    Returns:
        `parts`: lists of node indices, constants left out; `parser`: errors about the whole.
    """
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    known = {name: graph.TensorType.parse(each) for name, each in types.items()}
    proto = onnx.load(model, load_external_data=False)
    parts: list[list[int]] = []
    errors: list[dict[str, Any]] | None = None
    with Path(log).open("a") as sink:
        logger = logger_of(trt, sink)
        builder = trt.Builder(logger)
        load_libraries(trt, logger, plugins)
        pending = [graph.computing(proto, range(len(proto.graph.node)))]
        for _ in range(_ASKS):
            if not pending:
                break
            asked = pending.pop()
            part = graph.extract(proto, asked, known)
            if part is None:
                continue
            network = builder.create_network(network_flags(trt, flavor))
            parser = trt.OnnxParser(network, logger)
            taken = parser.supports_model_v2(part.model.SerializeToString(), model)
            if errors is None:
                errors = parser_errors(parser)
                for error in errors:
                    error["node"] = part.origin(error["node"])
            if taken:
                parts.append(asked)
                continue
            for index in range(parser.num_subgraphs):
                found = [part.origin(node) for node in parser.get_subgraph_nodes(index)]
                smaller = graph.computing(proto, [node for node in found if node is not None])
                if smaller and len(smaller) < len(asked):
                    pending.append(smaller)
    return {"parts": sorted(parts), "parser": errors or []}
