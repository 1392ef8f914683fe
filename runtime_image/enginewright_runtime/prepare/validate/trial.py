"""Loads a model on the reference, ONNX Runtime's CPU provider, and tells what that taught.

A child process of `validate` does: native code crashes, hangs and takes memory as the model says.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, name_nodes
from enginewright.contract.task import ShapeProfile
from onnx import ModelProto

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain, status
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.shape_nodes import shape_nodes
from enginewright_runtime.prepare.sizes.trial_run import observe, takes_batches
from enginewright_runtime.rules import table
from enginewright_runtime.rules.base import Hit
from enginewright_runtime.rules.operators import missing
from enginewright_runtime.rules.registry import of_runtime
from enginewright_runtime.rules.view import Node, View
from enginewright_runtime.session import loading
from enginewright_runtime.session.loading import LoadedModel
from enginewright_runtime.session.signature import SignatureError, read_signature

REFERENCE: Final = "cpu"  # the backend that golden outputs come from
_ADD_LIBRARY: Final = "add the library that has them to spec.extensions, or export without them"
_OPERATOR: Final = re.compile(
    r"(?P<domain>[^\s:]+):(?P<name>[^\s:(]+)\(-?\d+\) is not a registered"
)

_LOCALE: Final = re.compile(r"Failed to construct locale with name:(?P<name>[^\s:]+)")
_BY_LOCALE: Final = "StringNormalizer"


def load_and_run(
    path: str,
    inputs: list[dict[str, Any]],
    profiles: list[dict[str, Any]],
    batched: list[str],
) -> dict[str, Any]:
    """Check the model, load it and run it once. Called in a child process.

    Args:
        path: of the .onnx file.
        inputs: as `TensorSpec`.
        profiles: of the inputs, as `ShapeProfile`.
        batched: inputs whose batch has its default.

    Returns:
        `findings`; `shape_nodes`; `placement`, or None where it does not load; `run`, as
        `trial_run.observe` gives it; `one_batch`: whether it runs with the least batch alone.

    Raises:
        StageFailure: OutOfMemory; as `loading.create` raises it.
    """
    answer: dict[str, Any] = {"findings": [], "placement": None, "run": None, "one_batch": False}
    found: list[Finding] = []
    if complaint := _check_model(path):
        # what the checker refuses and ONNX Runtime loads is legal in practice, as unsorted nodes
        found.append(table.tell(table.CHECKER, f"onnx.checker says: {complaint}"))
    answer["shape_nodes"] = shape_nodes(graphs.parse(Path(path)))
    try:
        loaded = loading.create(REFERENCE, Path(path))
    except SessionError as error:
        found.append(_refusal(Path(path), str(error)))
    else:
        found += _unservable(loaded)
        placement = loaded.placement
        answer["placement"] = {
            "provider": placement.provider,
            "nodes": dict(placement.nodes),
            "elsewhere": list(placement.elsewhere),
        }
        specs = [TensorSpec.model_validate(spec) for spec in inputs]
        known = [ShapeProfile.model_validate(profile) for profile in profiles]
        answer["run"] = observe(loaded.session, specs, known)
        if answer["run"] is not None and batched:
            answer["one_batch"] = not takes_batches(loaded.session, specs, known, batched)
    answer["findings"] = [each.model_dump(mode="json") for each in found]
    return answer


def _check_model(path: str) -> str | None:
    """Return what onnx.checker, with shape inference, has against the model."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        return plain(str(error))
    return None


def _unservable(loaded: LoadedModel) -> list[Finding]:
    """Tell of outputs whose types only ONNX Runtime knows, since the model declares none."""
    try:
        read_signature(loaded.session.get_inputs(), loaded.session.get_outputs(), ())
    except SignatureError as error:
        return [table.tell(table.NO_OUTPUT, f"the model cannot be served: {error}")]
    return []


def _refusal(path: Path, text: str) -> Finding:
    """Return the finding for ONNX Runtime's own words."""
    words = plain(text)
    if is_out_of_memory(text):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"loading the model on backend {REFERENCE} wants more memory"
        )
    told = f"ONNX Runtime refuses the model: {words}"
    if "Current official support for domain" in text:
        return table.tell(table.OPSET_TOO_NEW, told)
    if "No Op registered" in text or "is not a registered function/op" in text:
        return _unknown_operator(graphs.parse(path), text, words)
    if status(text) == "NOT_IMPLEMENTED":
        named = [
            node
            for node in View(graphs.parse(path)).nodes
            if node.proto.name and f"'{node.proto.name}'" in text
        ]
        return table.tell(
            table.REFUSED_OPERATOR,
            f"backend {REFERENCE} cannot run the model: {words}",
            _all(named),
        )
    if locale := _LOCALE.search(text):
        nodes = [node for node in View(graphs.parse(path)).nodes if node.is_standard(_BY_LOCALE)]
        told = f"no locale {locale['name']} is installed here, by which {name_nodes(list(_all(nodes)))} works"
        return table.tell(table.NO_LOCALE, told, _all(nodes))
    if "External data" in text or "external data" in text:
        return table.tell(table.REFUSED_EXTERNAL, words)
    return table.tell(table.REFUSED_INVALID, told)


def _unknown_operator(model: ModelProto, text: str, words: str) -> Finding:
    """Name the nodes whose operator ONNX Runtime does not have, with a remedy by their domain."""
    domains = of_runtime().domains
    view = View(model)
    named = _OPERATOR.search(text)
    nodes = [
        node
        for node in view.nodes
        if not view.is_local(node)
        and (
            named is None or (node.domain or "ai.onnx", node.op) == (named["domain"], named["name"])
        )
        and (named is not None or node.op in text)
    ]
    labels = _all(nodes)
    if nodes and nodes[0].domain not in domains:
        return table.CUSTOM_DOMAIN.finding(
            Hit(
                "neither the runtime image nor a library in spec.extensions has the operators of"
                f" {name_nodes(list(labels))}: {words}",
                labels,
                remedy=_ADD_LIBRARY,
            )
        )
    return table.UNKNOWN_OPERATOR.finding(missing(nodes, of_runtime()) if nodes else Hit(words))


def _all(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(node.label for node in nodes)
