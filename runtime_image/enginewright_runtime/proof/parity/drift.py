"""Finds the first node at which two models that should agree diverge, for failure messages.

Inner tensors become outputs of copies of the models that share the external data.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto
from typing_extensions import override

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.parts import CONSTANT
from enginewright_runtime.proof.parity.bisection import first_drifting
from enginewright_runtime.proof.parity.measuring import fault, measure
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, ROUNDING, Tolerance, Tolerances
from enginewright_runtime.proof.parity.values import kind_of, wide
from enginewright_runtime.session import loading
from enginewright_runtime.session.reference import allow_unreleased
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import type_name
from enginewright_runtime.session.signature import SignatureError, read_signature

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 120.0
_PREFIX: Final = "drift-"  # of copies of the models, which are next to their external data
_AT_ONCE: Final = 8  # tensors that are held in memory
# Inside an FP32 model only rounding may differ. In lower precisions every node drifts, and the first
# that exceeds the tolerance is searched.
_INSIDE: Final[Mapping[str, Tolerance]] = DEFAULTS | {"FP32": ROUNDING}

Array = NDArray[Any]


@dataclass(frozen=True)
class Side:
    """A model and the backend that it runs on."""

    model: Path
    backend: str = "cpu"


@dataclass(frozen=True)
class Drift:
    """The first node whose output drifts."""

    label: str  # of the node, in the reference model
    tensor: str
    description: str

    @override
    def __str__(self) -> str:
        return f"the first node that drifts is {self.label}: its output {self.tensor!r} {self.description}"


def find_drift(
    reference: Side,
    judged: Side,
    inputs: Path,
    sample: str,
    output: str,
    *,
    tolerances: Tolerances,
) -> Drift | None:
    """Return the first node whose output drifts, if it can be determined in time.

    The nodes of `reference` are reported; `judged` is another model, or the same on another
    backend. `inputs` is an .npz file of arrays SAMPLE/INPUT, `sample` preferably the one with the
    largest errors, `output` differs, and `tolerances` are of the judged model.
    """
    try:
        limits = Limits(seconds=_SECONDS, memory_bytes=memory_of_child() // 2)
        return Call(search, "searching for the first node that drifts", limits).run(
            reference=reference,
            judged=judged,
            inputs=inputs,
            sample=sample,
            output=output,
            precision=tolerances.precision,
            rtol=tolerances.of_output(output, "float32").rtol,
        )
    except (StageFailure, SessionError) as error:
        _log.info("the first node that drifts cannot be determined: %s", error)
        return None
    finally:
        for folder in {reference.model.parent, judged.model.parent}:
            for path in folder.glob(f"{_PREFIX}*"):
                path.unlink(missing_ok=True)


def search(
    *,
    reference: Side,
    judged: Side,
    inputs: Path,
    sample: str,
    output: str,
    precision: str,
    rtol: float,
) -> Drift | None:
    """Search; arguments as for `find_drift`. Called in a child process."""
    allow_unreleased()  # the source may have an unreleased opset
    feeds = _feeds(inputs, sample)
    first, second = _Exposed(reference, feeds), _Exposed(judged, feeds)
    observable = frozenset(first.tensors() & second.tensors())
    usual = _INSIDE[precision]
    strict = min(usual.rtol, rtol or usual.rtol)  # the user's tolerance may be stricter
    allowed = replace(usual, rtol=strict, scale=strict)

    def probe(names: Sequence[str]) -> dict[str, str]:
        descriptions: dict[str, str] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            _log.info("comparing %s", ", ".join(some))
            expected, actual = first.run(some), second.run(some)
            for name in expected.keys() & actual.keys():
                if description := _drifts(expected[name], actual[name], allowed):
                    descriptions[name] = description
            for name in first.varying(list(descriptions)):
                del descriptions[name]  # it also differs between runs of the reference
            if descriptions:
                break
        return descriptions

    graph = first.model.graph
    drifting = first_drifting(graph, output, observable, probe)
    if drifting is None:
        return None
    return Drift(graphs.label(graph.node[drifting.node]), drifting.tensor, drifting.description)


def _feeds(inputs: Path, sample: str) -> dict[str, Array]:
    with np.load(inputs, allow_pickle=False) as file:
        keys = {key: key.partition("/") for key in file.files}
        return {name: file[key] for key, (owner, _, name) in keys.items() if owner == sample}


@dataclass(frozen=True)
class _Value:
    array: Array
    dtype: str


class _Exposed:
    def __init__(self, side: Side, feeds: Mapping[str, Array]) -> None:
        self._path = side.model
        self._backend = side.backend
        self._feeds = feeds
        self.model: ModelProto = graphs.parse(self._path)
        self._outputs = {value.name: value.SerializeToString() for value in self.model.graph.output}

    def tensors(self) -> set[str]:
        """Return the outputs of top-level nodes but Constant: for a wrong weight its reader is reported."""
        nodes = (node for node in self.model.graph.node if node.op_type != CONSTANT)
        return {name for node in nodes for name in node.output if name}

    def run(self, names: Sequence[str]) -> dict[str, _Value]:
        return self._runs(names, 1)[0]

    def varying(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        once, again = self._runs(names, 2)
        return [name for name, value in once.items() if _drifts(value, again[name], ROUNDING)]

    def _runs(self, names: Sequence[str], count: int) -> list[dict[str, _Value]]:
        copy = self._path.with_name(f"{_PREFIX}{time.monotonic_ns()}-{self._path.name}")
        try:
            copy.write_bytes(self._with_outputs(names))
            session = loading.create(self._backend, copy, strict=False).session
        finally:
            copy.unlink(missing_ok=True)
        try:
            signature = read_signature(session.get_inputs(), session.get_outputs(), ())
        except SignatureError:
            return [{}] * count  # sequences and the like
        fetched = [name for name in names if name in signature.outputs]
        ready = {
            name: array.astype(object) if signature.inputs[name].datatype.is_string else array
            for name, array in self._feeds.items()
        }
        runner = Runner(session, signature)
        return [
            {
                name: _Value(array, type_name(signature.outputs[name].datatype))
                for name, array in zip(
                    fetched, runner.run(fetched, ready) if fetched else (), strict=True
                )
            }
            for _ in range(count)
        ]

    def _with_outputs(self, names: Sequence[str]) -> bytes:
        graph = self.model.graph
        del graph.output[:]
        graph.output.extend(
            ValueInfoProto.FromString(content)
            for name, content in self._outputs.items()
            if name in names
        )
        graph.output.extend(
            ValueInfoProto(name=name) for name in names if name not in self._outputs
        )
        serialized: bytes = self.model.SerializeToString()
        return serialized


def _drifts(want: _Value, have: _Value, allowed: Tolerance) -> str | None:
    if want.array.shape != have.array.shape:
        return None  # the name has another meaning in the other model
    first, second, dtype = want.array, have.array, want.dtype
    if want.dtype != have.dtype:
        kinds = {kind_of(value.array, value.dtype) for value in (want, have)}
        if kinds != {"float"}:
            return None
        first, second, dtype = wide(first, want.dtype), wide(second, have.dtype), "float64"
    wrong = fault(measure(first, second, allowed, dtype), allowed)
    return wrong.description if wrong else None
