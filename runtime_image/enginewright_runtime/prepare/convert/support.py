"""Which nodes of a model the backend that is to serve supports, as far as its library can say here."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.labels import format_label
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.parts import computing
from enginewright_runtime.session import loading
from enginewright_runtime.session.extensions.libraries import of_model
from enginewright_runtime.tensorrt.flavor import FLAVORS
from enginewright_runtime.tensorrt.partition import partition
from enginewright_runtime.tensorrt.tensors import types

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 600.0
# backends without a device that may leave nodes to the CPU
_PLACED: Final = frozenset({"openvino"})


@dataclass(frozen=True)
class Support:
    """How far a backend supports a model."""

    refused: str | None = None  # the library's message, if it does not load the model
    elsewhere: tuple[str, ...] = ()  # labels of the nodes that it does not support
    reason: Reason | None = None  # with `refused`
    nodes: int | None = None  # number of placed nodes

    @property
    def complete(self) -> bool:
        """Tell whether the backend runs every node."""
        return self.refused is None and not self.elsewhere

    @property
    def operators(self) -> frozenset[str]:
        """Return the operators that it does not support."""
        return frozenset(name.rpartition(" (")[2].removesuffix(")") for name in self.elsewhere)

    def better_than(self, other: "Support") -> bool:
        """Tell whether the backend runs more of the model."""
        mine, its = (
            (support.refused is not None, len(support.elsewhere)) for support in (self, other)
        )
        return mine < its


def query_support(
    backend: str, model: Path, shape_nodes: Iterable[str], log: Path
) -> Support | None:
    """Query the backend, if possible here; nodes labelled in `shape_nodes` may run anywhere."""
    if backend in FLAVORS:
        elsewhere = _parser(backend, model, log)
        if elsewhere is None:
            return None
        return Support(elsewhere=_compute(elsewhere, shape_nodes))
    if backend not in _PLACED:
        return None
    doing = f"loading the converted model on backend {backend}"
    try:
        answer = Call(placement, doing, Limits.of_model(_SECONDS)).run(backend, model)
    except StageFailure as failure:
        return Support(failure.cause, reason=failure.reason)
    if (refused := answer.refused) is not None:
        short = is_out_of_memory(refused)
        return Support(
            refused, reason=Reason.OUT_OF_MEMORY if short else Reason.UNSUPPORTED_OPERATOR
        )
    return replace(answer, elsewhere=_compute(answer.elsewhere, shape_nodes))


def placement(backend: str, model: Path) -> Support:
    """Return the backend's support, without a reason. Called in a child process."""
    try:
        placed = loading.create(backend, model).placement
    except SessionError as error:
        return Support(plain(str(error)))
    return Support(elsewhere=tuple(placed.elsewhere), nodes=placed.total)


def _parser(backend: str, model: Path, log: Path) -> list[str] | None:
    try:
        version = loading.find(backend).version()
        tensor_types = Call(
            types, "reading the types of the model's tensors", Limits.of_model(_SECONDS)
        ).run(model)
        doing = f"asking {FLAVORS[backend].title} which nodes it supports"
        answer = Call(partition, doing, Limits(_SECONDS)).run(
            backend=backend,
            version=version,
            model=model,
            types=tensor_types,
            log=log,
            plugins=of_model(model).plugins,
        )
    except (StageFailure, SessionError) as error:
        _log.info("backend %s cannot be queried here: %s", backend, plain(str(error)))
        return None
    proto = graphs.parse(model)
    taken = {index for part in answer.parts for index in part}
    nodes = proto.graph.node
    return [
        format_label(nodes[index].name, nodes[index].op_type)
        for index in computing(proto, range(len(nodes)))
        if index not in taken
    ]


def _compute(elsewhere: Iterable[str], shape_nodes: Iterable[str]) -> tuple[str, ...]:
    anywhere = set(shape_nodes)
    return tuple(name for name in elsewhere if name not in anywhere)
