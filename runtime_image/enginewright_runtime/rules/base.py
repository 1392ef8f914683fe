"""What a rule is, and the model and recipe that it checks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias

from enginewright_contract.images import COMPILED_BACKENDS, DEVICE_BACKENDS
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, name_nodes
from enginewright_contract.task import Recipe, ShapeProfile
from onnx import TensorProto

from enginewright_runtime.rules import contents
from enginewright_runtime.rules.registry import Registry
from enginewright_runtime.rules.text import printable
from enginewright_runtime.rules.view import ModelView, RawNode, constant_tensors

MAX_NODES: Final = 100  # kept in a finding
Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True)
class Hit:
    """What a check found: one sentence without a remedy, and the nodes concerned."""

    message: str
    nodes: tuple[str, ...] = ()  # labels of all of them
    severity: Severity | None = None  # overrides the rule's
    remedy: str | None = None  # likewise


@dataclass(frozen=True)
class Rule:
    """One known problem. `what` completes "this rule finds"."""

    name: str
    what: str
    remedy: str
    source: str  # the document or measurement that the rule rests on
    check: "Callable[[Subject], Hit | None] | None" = None  # otherwise found by loading the model
    severity: Severity = "error"
    reason: Reason = Reason.INVALID_MODEL

    def finding(self, hit: Hit) -> Finding:
        """Return the finding for a report, in plain text."""
        return Finding(
            severity=hit.severity or self.severity,
            reason=self.reason,
            rule=self.name,
            cause=printable(hit.message.rstrip(". ")),
            remedy=printable(hit.remedy or self.remedy),
            nodes=hit.nodes[:MAX_NODES],
            node_count=len(hit.nodes),
        )


@dataclass(frozen=True)
class Subject:
    """A model, and the recipe of the artefact to prepare from it."""

    view: ModelView
    folder: Path  # of the model and its external data
    recipe: Recipe
    registry: Registry  # of the operators of the runtime image
    inputs: tuple[TensorSpec, ...] = ()  # without initializers
    outputs: tuple[TensorSpec, ...] = ()
    profiles: tuple[ShapeProfile, ...] = ()  # of the inputs whose sizes are known
    converted: bool = False  # `convert` will change its opset or IR version

    @property
    def on_device(self) -> bool:
        """Tell whether the backend needs a device, so that it cannot be tried here."""
        return self.recipe.backend in DEVICE_BACKENDS

    @property
    def compiled(self) -> bool:
        """Tell whether TensorRT or TensorRT-RTX parses the model."""
        return self.recipe.backend in COMPILED_BACKENDS

    @cached_property
    def summaries(self) -> Mapping[int, contents.TensorSummary]:
        """Return summaries of complete floating-point tensors, by the `id` of the message; reads all weights once."""
        summaries: dict[int, contents.TensorSummary] = {}
        for _, tensor in self.tensors:
            if tensor.data_type in contents.FLOATS:
                try:
                    summaries[id(tensor)] = contents.summarize(tensor, self.folder)
                except contents.UnreadableError:
                    continue
        return summaries

    def summary(self, tensor: TensorProto) -> contents.TensorSummary | None:
        """Return one tensor's summary; None if it is not floating-point, or its data incomplete."""
        if tensor.data_type not in contents.FLOATS:
            return None
        if (summary := self.summaries.get(id(tensor))) is not None:
            return summary
        try:
            return contents.summarize(tensor, self.folder)
        except contents.UnreadableError:
            return None

    @cached_property
    def tensors(self) -> tuple[tuple[str, TensorProto], ...]:
        """Return every constant tensor with its name for messages."""
        return tuple(constant_tensors(self.view))


def hit_on(nodes: Sequence[RawNode], message: str) -> Hit | None:
    """Return the hit on these nodes, which follow the message, or None without nodes."""
    return Hit(f"{message}: {list_nodes(nodes)}", labels(nodes)) if nodes else None


def hit_of(items: list[str], message: str, nodes: Iterable[str] = ()) -> Hit | None:
    """Return the hit whose message ends with these items, or None without items."""
    return Hit(f"{message}: {name_nodes(items)}", tuple(nodes)) if items else None


def list_nodes(nodes: Iterable[RawNode]) -> str:
    """Return the labels of the first nodes and a count of the rest, for a message."""
    return name_nodes([node.label for node in nodes])


def labels(nodes: Iterable[RawNode]) -> tuple[str, ...]:
    """Return the nodes' labels, as messages show them."""
    return tuple(node.label for node in nodes)
