"""Makes a model of another precision, proves it, and leaves dear nodes out until the proof holds.

What a child process executes: JSON in, JSON out. Everything native is here, so that a crash or running
out of memory is reported by the stage that waits.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright.contract.base import Message
from enginewright.contract.manifest import OutputParity, TensorSpec, VaryingOutput
from enginewright.contract.reasons import Reason
from enginewright.contract.task import Recipe
from onnx import TensorProto, helper
from pydantic import Field
from typing_extensions import override

from enginewright_runtime.core.digests import MODEL_NAME
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.shape_nodes import shape_nodes
from enginewright_runtime.graph.storage import save
from enginewright_runtime.prepare.convert.translating import TranslationError
from enginewright_runtime.prepare.quantize import calibration, dynamic, halves, static
from enginewright_runtime.prepare.quantize.calibration import CalibrationData, Feeds
from enginewright_runtime.prepare.quantize.forms import Form, dynamic_form, form_of
from enginewright_runtime.prepare.quantize.half_rules import HALVES, Half
from enginewright_runtime.prepare.quantize.observing import limits, single_values, value_types
from enginewright_runtime.prepare.quantize.prove import MOST_OF_CALIBRATION, Proof, Prover
from enginewright_runtime.prepare.quantize.ranges import Ranges, learn
from enginewright_runtime.prepare.quantize.searching import (
    FIRST_GROUPS,
    Budget,
    Found,
    Group,
    search,
)
from enginewright_runtime.prepare.quantize.signatures import element_types
from enginewright_runtime.prepare.quantize.subject import Subject
from enginewright_runtime.prepare.quantize.telling import tell
from enginewright_runtime.prepare.quantize.tensors import Sink
from enginewright_runtime.prepare.quantize.widening import ROUNDING, widen
from enginewright_runtime.proof.golden_run import INPUTS
from enginewright_runtime.proof.parity import Tolerances
from enginewright_runtime.session.arrays import read_arrays

__all__ = ["PREFIX", "ROUNDING", "Made", "Order", "make", "write_widened"]

PREFIX: Final = "quantize-"  # of all that lies about while it works
TRIALS: Final = 64  # models that are made and proven to find what to leave out
SECONDS: Final = 600.0  # that finding it may take
_BASE: Final = f"{PREFIX}base.onnx"  # beside the source: under the opset that the precision needs
_WIDENED: Final = "widened.onnx"  # beside the candidate
_DEAREST: Final = 10  # groups of nodes that are told
_SAMPLES_OF_LIMITS: Final = 64  # of calibration data, from which the limits of halves are learnt
_SHARE: Final = 0.25  # of the nodes that may be left out, where nothing is said
_BF16_OPSETS: Final = (22, 13)  # convolutions take it from 22 on, products of matrices from 13 on


class Order(Message):
    """What is to be made of what."""

    precision: str  # FP16 | BF16 | FP8 | INT8
    source: str  # the model at its own precision; its folder is writable
    golden: str  # folder of the golden samples
    calibration: str | None  # folder; None: there is no data
    inputs: tuple[TensorSpec, ...]
    recipe: Recipe
    out: str  # folder for the model; must not exist
    progress: str  # file
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ from run to run of the source


class GroupCost(Message):
    """What a few neighbouring nodes cost when they alone are of lower precision."""

    nodes: tuple[str, ...]  # labels
    error: float  # 1 - cosine of the worst output


class Made(Message):
    """What has come of an order."""

    agrees: bool  # whether parity holds
    words: str | None = None  # what does not agree, with all nodes or what is left of them
    outputs: tuple[OutputParity, ...] = ()
    opset: int = 0
    ir_version: int = 0
    nodes: int = 0
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic
    source_opset: int = 0
    changed: tuple[str, ...] = ()  # labels of the nodes that are of lower precision
    left: dict[str, str] = Field(
        default_factory=dict
    )  # labels of those that are not, to the reason
    excluded: tuple[str, ...] = ()  # of them, those that cost too much accuracy
    first_error: float = 0.0  # with no node left out
    error: float = 0.0  # with those left out that are
    costs: tuple[GroupCost, ...] = ()  # dearest first; (): not measured, since nothing had to be
    trials: int = 0
    samples: int = 0  # of calibration data that were used; 0: none
    given: int = 0  # that there were


def make(*, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order; the model is left in `out` if it agrees.

    Returns:
        `Made`, as JSON.

    Raises:
        StageFailure: CalibrationInvalid; PrecisionUnsupported where an opset forbids it;
            QuantizationFailed where no node can be of the precision; ModelTooLarge.
        SessionError: ONNX Runtime's CPU provider refuses the model before or after.
    """
    return _Making(Order.model_validate(order)).run().model_dump(mode="json")


def write_widened(*, model: str, out: str) -> None:
    """Write a model of halves as one that ONNX Runtime's CPU provider runs, beside its weights."""
    proto = graphs.parse(Path(model))
    widen(proto)
    save(proto, Path(out))


class _Maker(ABC):
    """Writes models of one precision that differ in which nodes are left out."""

    proof_level: str = "BASIC"

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @property
    @abstractmethod
    def units(self) -> Sequence[int]:
        """Return the indices of the nodes that can be of the precision."""

    @abstractmethod
    def write(self, folder: Path, excluded: frozenset[int]) -> tuple[list[str], dict[str, str]]:
        """Write a model into a new folder; return changed nodes, and those left with the reason."""

    def to_prove(self, folder: Path) -> Path:
        """Return the model to run in a proof of the one in the folder."""
        return folder / MODEL_NAME


class _Halves(_Maker):
    def __init__(self, subject: Subject, half: Half, largest: dict[str, float]) -> None:
        super().__init__(subject)
        self._half = half
        self._largest = largest
        self._units: frozenset[int] = frozenset()

    @property
    @override
    def units(self) -> Sequence[int]:
        return sorted(self._units)

    @override
    def write(self, folder: Path, excluded: frozenset[int]) -> tuple[list[str], dict[str, str]]:
        with Sink(folder, self.subject.model) as sink:
            lowered = halves.lower(
                self.subject, self._half, sink, excluded=excluded, largest=self._largest
            )
            sink.write(lowered.model, self.subject.folder)
        if not excluded:
            self._units = lowered.units
        return lowered.nodes, lowered.kept

    @override
    def to_prove(self, folder: Path) -> Path:
        write_widened(model=str(folder / MODEL_NAME), out=str(folder / _WIDENED))
        return folder / _WIDENED


class _Quantized(_Maker):
    def __init__(self, subject: Subject, form: Form, *, per_channel: bool) -> None:
        super().__init__(subject)
        self.form = form
        self.proof_level = form.proof_level
        self.layers = static.find_layers(subject, form, per_channel=per_channel)

    @property
    @override
    def units(self) -> Sequence[int]:
        return [layer.index for layer in self.layers.layers]

    @override
    def write(self, folder: Path, excluded: frozenset[int]) -> tuple[list[str], dict[str, str]]:
        with Sink(folder, self.subject.model) as sink:
            written = self.written(sink, excluded)
            sink.write(written.model, self.subject.folder)
        return written.quantized, written.left

    def written(self, sink: Sink, excluded: frozenset[int]) -> static.Written:
        return dynamic.write(self.subject, self.layers, self.form, sink, excluded=excluded)


class _Calibrated(_Quantized):
    def __init__(self, subject: Subject, form: Form, *, per_channel: bool) -> None:
        super().__init__(subject, form, per_channel=per_channel)
        self.ranges: Ranges = {}

    def values(self) -> list[str]:
        """Return the values whose ranges are needed."""
        names = [name for layer in self.layers.layers for name in (layer.activation, layer.result)]
        return list(dict.fromkeys(name for name in names if name))

    @override
    def written(self, sink: Sink, excluded: frozenset[int]) -> static.Written:
        return static.write(
            self.subject, self.layers, self.ranges, self.form, sink, excluded=excluded
        )


class _Making:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._recipe = order.recipe
        self._source = Path(order.source)
        self._out = Path(order.out)
        self._golden = Path(order.golden)
        self._data = self._read_calibration()
        self._tell(f"reading the model for {order.precision}")
        self._subject, self._source_opset = self._load()
        self._base = self._source
        if graphs.default_opset(self._subject.model) != self._source_opset:
            self._base = self._source.with_name(_BASE)
            save(self._subject.model, self._base)
        self._count = 0

    def run(self) -> Made:
        maker = self._maker()
        changed, left = maker.write(self._out, frozenset())
        if not changed:
            raise StageFailure(
                Reason.QUANTIZATION_FAILED,
                f"no node of the model can be {self._order.precision}{_why(left)}",
                nodes=tuple(left),
                remedy="leave spec.precision out, or choose another",
            )
        prover = Prover.of(
            self._base,
            self._golden,
            Tolerances.of(self._recipe, self._order.precision),
            self._further(),
            self._order.varying,
        )
        self._tell(f"proving the {self._order.precision} model")
        proof = first = prover.prove(maker.to_prove(self._out), maker.proof_level)
        found = Found(frozenset())
        excluded: frozenset[int] = frozenset()
        if not proof.agrees:
            found = self._search(maker, prover)
            if found.excluded is not None:
                excluded = found.excluded
                shutil.rmtree(self._out)
                changed, left = maker.write(self._out, excluded)
                proof = prover.prove(maker.to_prove(self._out), maker.proof_level)
        (self._out / _WIDENED).unlink(missing_ok=True)
        if proof.agrees:
            self._check()
        return self._made(proof, first, found, changed, left, excluded)

    def _made(
        self,
        proof: Proof,
        first: Proof,
        found: Found,
        changed: Sequence[str],
        left: dict[str, str],
        excluded: frozenset[int],
    ) -> Made:
        model = graphs.parse(self._out / MODEL_NAME)
        return Made(
            agrees=proof.agrees,
            words=proof.words or first.words,
            outputs=proof.outputs,
            opset=graphs.default_opset(model) or 0,
            ir_version=model.ir_version,
            nodes=sum(1 for _ in graphs.walk_nodes(model)),
            shape_nodes=shape_nodes(model),
            source_opset=self._source_opset,
            changed=tuple(changed),
            left=left,
            excluded=tuple(self._subject.label(index) for index in sorted(excluded)),
            first_error=_finite(first.error),
            error=_finite(proof.error),
            costs=tuple(self._cost(group) for group in found.groups[:_DEAREST]),
            trials=found.trials,
            samples=self._data.samples if self._data else 0,
            given=self._data.given if self._data else 0,
        )

    def _cost(self, group: Group) -> GroupCost:
        labels = tuple(self._subject.label(index) for index in group.units)
        return GroupCost(nodes=labels, error=_finite(group.error))

    # what is needed

    def _read_calibration(self) -> CalibrationData | None:
        wanted = self._recipe.quantization.calibration if self._recipe.quantization else None
        if self._order.calibration is None or wanted is None:
            return None
        return calibration.read(
            Path(self._order.calibration),
            self._order.inputs,
            most=wanted.samples,
            preprocessing=wanted.preprocessing,
        )

    def _load(self) -> tuple[Subject, int]:
        """Parse the model under an opset that has the precision; return it, and its own opset."""
        own = graphs.default_opset(graphs.parse(self._source)) or 1
        refused = ""
        for needed in self._opsets():
            if own >= needed:
                return Subject.load(self._source), own
            most = self._recipe.target_opset or self._recipe.max_opset
            if needed > most:
                refused = f"{self._order.precision} needs opset {needed}, and"
                refused += (
                    f" spec.targetOpset is {most}"
                    if self._recipe.target_opset is not None
                    else f" the runtime image loads at most {most}"
                )
                continue
            try:
                return Subject.load(self._source, needed), own
            except TranslationError as error:
                refused = f"opset {own} cannot be converted to {needed}, which {self._order.precision} needs: {error}"
        raise StageFailure(
            Reason.PRECISION_UNSUPPORTED,
            refused,
            remedy="leave spec.targetOpset out, or export with a later opset",
        )

    def _opsets(self) -> tuple[int, ...]:
        """Return the opsets that have the precision, the best first."""
        match self._order.precision:
            case "FP16":
                return (1,)
            case "BF16":
                return _BF16_OPSETS
            case _:
                return (self._form().opset,)

    def _form(self) -> Form:
        if self._data is None:
            return dynamic_form(self._recipe.int8_products)
        return form_of(self._order.precision, self._recipe.backend, self._recipe.int8_products)

    def _maker(self) -> _Maker:
        half = HALVES.get(self._order.precision)
        if half is not None:
            self._declare_types()
            return _Halves(self._subject, half, self._largest() if half.name == "FP16" else {})
        per_channel = self._recipe.quantization is None or self._recipe.quantization.per_channel
        if self._data is None:
            return _Quantized(self._subject, self._form(), per_channel=per_channel)
        maker = _Calibrated(self._subject, self._form(), per_channel=per_channel)
        wanted = self._recipe.quantization.calibration if self._recipe.quantization else None
        maker.ranges = learn(
            self._base,
            maker.values(),
            self._data,
            wanted.method if wanted else "MinMax",
            lambda share: self._tell(f"calibrating: {share:.0%} of the runs"),
        )
        return maker

    def _declare_types(self) -> None:
        """Write the types of values into the model where schemas do not tell them all."""
        graph = self._subject.model.graph
        known = element_types(self._subject.model)
        made = {name for node in graph.node for name in node.output if name}
        if made <= known.keys():
            return
        self._tell("asking ONNX Runtime for types")
        for name, kind in value_types(self._base).items():
            element = kind.removeprefix("tensor(").removesuffix(")").upper()
            if name not in known and element in TensorProto.DataType.keys():  # noqa: SIM118 - no mapping: it has no `in`
                graph.value_info.append(
                    helper.make_tensor_value_info(name, TensorProto.DataType.Value(element), None)
                )

    def _largest(self) -> dict[str, float]:
        """Return the greatest absolute values of golden and calibration samples."""
        self._tell("looking for values that a half cannot hold")
        names = single_values(self._subject.model)
        found = limits(self._base, names, self._observed())
        return {name: each.largest for name, each in found.items()}

    def _observed(self) -> Iterator[Feeds]:
        for feeds in read_arrays(self._golden / INPUTS).values():
            yield {name: _objects(array) for name, array in feeds.items()}
        yield from self._some(_SAMPLES_OF_LIMITS)

    def _further(self) -> Iterator[Feeds]:
        yield from self._some(MOST_OF_CALIBRATION)

    def _some(self, most: int) -> Iterator[Feeds]:
        """Yield samples of the calibration data that lie evenly among all."""
        if self._data is None:
            return
        step = max(1, self._data.samples // most)
        for index, feeds in enumerate(self._data):
            if index % step == 0 and index // step < most:
                yield feeds

    # what is tried

    def _search(self, maker: _Maker, prover: Prover) -> Found:
        """Look for few nodes to leave out."""
        units = maker.units
        quantization = self._recipe.quantization
        share = _SHARE if quantization is None else quantization.max_excluded_share
        allowed = int(len(units) * share)
        # where nothing may be left out, it is only to tell where the error comes from
        trials = TRIALS if allowed else FIRST_GROUPS
        budget = Budget(trials, SECONDS)

        def evaluate(excluded: frozenset[int]) -> Proof:
            self._tell(
                f"looking for the nodes that cost most accuracy: trial {budget.used} of at"
                f" most {trials}"
            )
            self._count += 1
            folder = self._out.with_name(f"{PREFIX}trial-{self._count}")
            try:
                maker.write(folder, excluded)
                return prover.prove(maker.to_prove(folder), maker.proof_level)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return search(units, evaluate, allowed, budget)

    def _check(self) -> None:
        """Hold the result against ONNX's own rules, which its source kept."""
        if _checks(self._base) is None and (words := _checks(self._out / MODEL_NAME)):
            raise StageFailure(
                Reason.INTERNAL_ERROR,
                f"the {self._order.precision} model breaks ONNX's rules: {words}",
            )

    def _tell(self, words: str) -> None:
        tell(Path(self._order.progress), words)


def _checks(path: Path) -> str | None:
    """Return what ONNX's checker says against a model; None: nothing."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ) as error:
        return " ".join(str(error).split())
    return None


def _why(left: dict[str, str]) -> str:
    if not left:
        return ""
    first = next(iter(left))
    return f": {counted(len(left), 'node')} could be, of {first} for example: {left[first]}"


def _finite(error: float) -> float:
    """Return a number that JSON can hold."""
    return min(error, 1e9)


def _objects(array: Any) -> Any:  # noqa: ANN401 - a NumPy array
    return array.astype(object) if array.dtype.kind in "US" else array
