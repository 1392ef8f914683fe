"""Loads a model on the reference, ONNX Runtime's CPU provider, in a child process of `validate`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import ShapeProfile
from onnx import ModelProto

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain, status
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.checker import checker_error
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.sizes.trial_run import BatchTrial, observe, try_batch
from enginewright_runtime.rules import table
from enginewright_runtime.rules.base import Hit, labels, list_nodes
from enginewright_runtime.rules.behaviour import ObservedRun
from enginewright_runtime.rules.operators import missing
from enginewright_runtime.rules.registry import of_runtime
from enginewright_runtime.rules.table import CUSTOM_DOMAIN
from enginewright_runtime.rules.view import ModelView
from enginewright_runtime.session import loading
from enginewright_runtime.session.loading import LoadedModel
from enginewright_runtime.session.placement import SessionPlacement
from enginewright_runtime.session.signature import SignatureError, read_signature

REFERENCE: Final = "cpu"  # the backend that golden outputs come from
_OPERATOR: Final = re.compile(
    r"(?P<domain>[^\s:]+):(?P<name>[^\s:(]+)\(-?\d+\) is not a registered"
)

_LOCALE: Final = re.compile(r"Failed to construct locale with name:(?P<name>[^\s:]+)")
_LOCALE_OPERATOR: Final = "StringNormalizer"


@dataclass(frozen=True)
class LoadResult:
    """Facts from loading and running a model."""

    findings: tuple[Finding, ...]
    shape_nodes: tuple[str, ...]
    placement: SessionPlacement | None = None  # if it loads
    run: ObservedRun | None = None  # with the smallest sizes
    batch_run: ObservedRun | None = None  # with a batch larger by one
    one_batch: bool = False  # whether it runs with the smallest batch only


def load_and_run(
    path: Path,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    batched: Sequence[str],
) -> LoadResult:
    """Check the model, load it and run it once, in a child process; `batched` are default batches."""
    findings: list[Finding] = []
    if objection := checker_error(path, full=True):
        # only a warning: ONNX Runtime loads much that the checker refuses, such as unsorted nodes
        findings.append(table.finding(table.CHECKER, f"onnx.checker reports: {objection}"))
    shapes = shape_nodes(graphs.parse(path))
    try:
        loaded = loading.create(REFERENCE, path)
    except SessionError as error:
        refusal = _refusal(path, str(error))
        if refusal.reason is Reason.INVALID_MODEL:
            findings.clear()  # the checker's finding says that the model can be served
        return LoadResult((*findings, refusal), shapes)
    findings += _unservable(loaded)
    observed = observe(loaded.session, inputs, profiles)
    batch = BatchTrial()
    if observed is not None and batched:
        batch = try_batch(loaded.session, inputs, profiles, batched)
    return LoadResult(
        tuple(findings), shapes, loaded.placement, observed, batch.run, one_batch=batch.refused
    )


def _unservable(loaded: LoadedModel) -> list[Finding]:
    """Return a finding for undeclared output types, which only ONNX Runtime infers."""
    try:
        read_signature(loaded.session.get_inputs(), loaded.session.get_outputs(), ())
    except SignatureError as error:
        return [table.finding(table.NO_OUTPUT, f"the model cannot be served: {error}")]
    return []


def _refusal(path: Path, text: str) -> Finding:
    error = plain(text)
    if is_out_of_memory(text):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"loading the model on backend {REFERENCE} ran out of memory"
        )
    cause = f"ONNX Runtime refuses the model: {error}"
    if "Current official support for domain" in text:
        return table.finding(table.OPSET_TOO_NEW, cause)
    if "No Op registered" in text or "is not a registered function/op" in text:
        return _report_unknown_operator(graphs.parse(path), text, error)
    if status(text) == "NOT_IMPLEMENTED":
        unimplemented = [
            node
            for node in ModelView(graphs.parse(path)).nodes
            if node.proto.name and f"'{node.proto.name}'" in text
        ]
        return table.finding(
            table.REFUSED_OPERATOR,
            f"backend {REFERENCE} cannot run the model: {error}",
            labels(unimplemented),
        )
    if locale := _LOCALE.search(text):
        nodes = [
            node
            for node in ModelView(graphs.parse(path)).nodes
            if node.is_standard(_LOCALE_OPERATOR)
        ]
        cause = f"locale {locale['name']}, which {list_nodes(nodes)} needs, is not installed here"
        return table.finding(table.NO_LOCALE, cause, labels(nodes))
    if "External data" in text or "external data" in text:
        return table.finding(table.REFUSED_EXTERNAL, error)
    return table.finding(table.REFUSED_INVALID, cause)


def _report_unknown_operator(model: ModelProto, text: str, error: str) -> Finding:
    domains = of_runtime().domains
    view = ModelView(model)
    refused = _OPERATOR.search(text)
    nodes = [
        node
        for node in view.nodes
        if not view.is_local(node)
        and (
            refused is None
            or (node.domain or "ai.onnx", node.op) == (refused["domain"], refused["name"])
        )
        and (refused is not None or node.op in text)
    ]
    if nodes and nodes[0].domain not in domains:
        return table.CUSTOM_DOMAIN.finding(
            Hit(
                "neither the runtime image nor a library in spec.extensions has the operators of"
                f" {list_nodes(nodes)}: {error}",
                labels(nodes),
                remedy=CUSTOM_DOMAIN.remedy,
            )
        )
    return table.UNKNOWN_OPERATOR.finding(missing(nodes, of_runtime()) if nodes else Hit(error))
