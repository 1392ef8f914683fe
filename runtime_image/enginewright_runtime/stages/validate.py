"""Finds out whether the runtime image can serve the model, and why not, before anything serves.

Everything wrong is collected, not only the first thing: an owner fixes an export once.
"""

import logging
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import Finding, StageReport, name_nodes
from enginewright.contract.task import PrepareTask, Recipe
from onnx import ModelProto

from enginewright_runtime import backends, graphs
from enginewright_runtime.backends.base import SessionError
from enginewright_runtime.backends.words import is_out_of_memory, plain, status
from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.extensions.proving import prove
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.handoff import MODEL_FOLDER, Fetched, Validated
from enginewright_runtime.isolation import run_isolated
from enginewright_runtime.logs import counted, in_words
from enginewright_runtime.paths import Paths
from enginewright_runtime.server.signature import SignatureError, read_signature
from enginewright_runtime.shapes import resolve
from enginewright_runtime.stages.inspection import (
    check_domains,
    finding,
    inspect,
    unknown_operators,
)
from enginewright_runtime.stages.shape_nodes import shape_nodes

_log: Final = logging.getLogger(__name__)
_LARGEST_PROTOBUF: Final = 2**31 - 1
_REFERENCE: Final = "cpu"  # the backend that golden outputs come from
_ADD_LIBRARY: Final = "add the library that has them to spec.extensions, or export without them"
# what a backend may have and the reference not, with the remedy at the end of its message
_LEFT_TO_DEVICE: Final = {
    Reason.UNSUPPORTED_OPERATOR: REMEDIES[Reason.UNSUPPORTED_OPERATOR],
    Reason.CUSTOM_DOMAIN_UNSUPPORTED: _ADD_LIBRARY,
}
# the reason that is told when there are several: what must be mended first
_ORDER: Final = (
    Reason.INVALID_MODEL,
    Reason.EXTERNAL_DATA_MISSING,
    Reason.IR_VERSION_UNSUPPORTED,
    Reason.OPSET_UNSUPPORTED,
    Reason.CUSTOM_DOMAIN_UNSUPPORTED,
    Reason.UNSUPPORTED_OPERATOR,
    Reason.BACKEND_CRASHED,
    Reason.PROVIDER_MISSING,
    Reason.SHAPE_PROFILE_INVALID,
    Reason.SHAPE_PROFILE_MISSING,
)


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Validate what `fetch` left; leaves `Validated`.

    Raises:
        StageFailure: the most important of the errors found, with all findings.
    """
    Fetched.pick_up(paths.work)
    path = paths.work / MODEL_FOLDER / MODEL_NAME
    model = load(path)
    recipe = task.recipe
    inputs = graphs.inputs_of(model)
    unranked = frozenset(spec.name for spec in inputs if not graphs.has_rank(model, spec.name))
    resolved = resolve(inputs, recipe.shapes, unranked)
    found = inspect(model, path.parent, recipe)
    if not inputs:
        found.append(finding(Reason.INVALID_MODEL, "the model has no inputs, so nothing to serve"))
    facts: dict[str, Any] = {}
    if not found:
        prove(path, recipe.extensions)
        found += _load_sessions(model, path, recipe, facts)
    found += resolved.findings
    _refuse_errors(found)
    nodes = sum(1 for _ in graphs.walk_nodes(model))
    opset = graphs.default_opset(model) or 0
    warnings = tuple(entry for entry in found if entry.severity == "warning")
    Validated(
        opset=opset,
        ir_version=model.ir_version,
        nodes=nodes,
        inputs=inputs,
        outputs=graphs.outputs_of(model),
        profiles=resolved.profiles,
        warnings=warnings,
        shape_nodes=tuple(facts.get("shape_nodes", ())),
    ).leave(paths.work)
    told = f"; {warnings[0].message}" if warnings else ""
    return StageReport(
        stage="validate",
        ok=True,
        message=f"{counted(nodes, 'node')}, opset {opset}, IR version {model.ir_version}{told}",
        findings=warnings,
        facts=facts | _described(inputs, graphs.outputs_of(model)),
    )


def load(path: Path) -> ModelProto:
    """Parse the model without its external data.

    Raises:
        StageFailure: ModelTooLarge or InvalidModel, in words.
    """
    size = path.stat().st_size
    if size > _LARGEST_PROTOBUF:
        raise StageFailure(
            Reason.MODEL_TOO_LARGE, f"the .onnx file has {in_words(size)}; a protobuf ends at 2 GiB"
        )
    try:
        model = graphs.parse(path)
    except graphs.UnparsableError as error:
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"the file of {in_words(size)} is no ONNX model, or is cut off: its protobuf cannot be"
            " parsed",
        ) from error
    if not model.ir_version or not model.HasField("graph") or not model.graph.node:
        lacks = "IR version" if not model.ir_version else "nodes"
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"the file of {in_words(size)} is no ONNX model: it has no {lacks}",
        )
    return model


def _load_sessions(
    model: ModelProto, path: Path, recipe: Recipe, facts: dict[str, Any]
) -> list[Finding]:
    """Load on the reference and on the backend that is to serve, each in a process of its own.

    No device is lent to a prepare Job, so of a backend that needs one nothing is learnt here: the
    engine Job and the pods prove it, and it may run operators that the reference does not have.
    """
    found = _try_session(model, path, _REFERENCE, facts)
    if recipe.backend in DEVICE_BACKENDS:
        return [_left_to_device(each, recipe.backend) for each in found]
    if recipe.backend != _REFERENCE and all(each.severity != "error" for each in found):
        found += _try_session(model, path, recipe.backend, facts)
        found += _partial_fallback(recipe.backend, facts)
    return found


def _left_to_device(found: Finding, backend: str) -> Finding:
    """Make of an operator that only the reference lacks a warning."""
    if found.reason not in _LEFT_TO_DEVICE:
        return found
    told = found.message.removesuffix(f"; {_LEFT_TO_DEVICE[found.reason]}")
    message = f"{told}; whether backend {backend} can is found out on its device"
    return found.model_copy(update={"severity": "warning", "message": message})


def _try_session(
    model: ModelProto, path: Path, backend: str, facts: dict[str, Any]
) -> list[Finding]:
    doing = f"loading the model on backend {backend}"
    _log.info("%s", doing)
    try:
        answer = run_isolated(f"{__name__}:load_session", doing, backend=backend, path=str(path))
    except StageFailure as failure:
        if failure.reason not in _ORDER:
            raise
        return [
            Finding(
                severity="error",
                reason=failure.reason,
                message=failure.message,
                nodes=failure.nodes,
                node_count=len(failure.nodes),
            )
        ]
    facts[f"placement_{backend}"] = answer.get("placement")
    if "shape_nodes" in answer:
        facts["shape_nodes"] = answer["shape_nodes"]
    found = []
    if refused := answer.get("refused"):
        found.append(_session_finding(model, backend, refused))
    if complaint := answer.get("complaint"):
        # what the checker refuses and ONNX Runtime loads is legal in practice, as unsorted nodes
        message = f"onnx.checker says: {complaint}"
        found.append(finding(Reason.INVALID_MODEL, message, severity="warning"))
    return found


def _session_finding(model: ModelProto, backend: str, text: str) -> Finding:
    words = plain(text)
    if is_out_of_memory(text):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"loading the model on backend {backend} wants more memory"
        )
    if "Current official support for domain" in text:
        return finding(Reason.OPSET_UNSUPPORTED, f"ONNX Runtime refuses the model: {words}")
    if "No Op registered" in text or "is not a registered function/op" in text:
        unknown = unknown_operators(model)
        if not unknown and (foreign := check_domains(model)):
            return _of_no_extension(model, words, foreign)
        labels = name_nodes([graphs.label(node) for node in unknown])
        told = f"ONNX Runtime has no operator for {labels}" if labels else words
        return finding(Reason.UNSUPPORTED_OPERATOR, told, unknown)
    if status(text) == "NOT_IMPLEMENTED" or backend != _REFERENCE:
        named = [
            node for node in graphs.walk_nodes(model) if node.name and f"'{node.name}'" in text
        ]
        return finding(
            Reason.UNSUPPORTED_OPERATOR, f"backend {backend} cannot run the model: {words}", named
        )
    if "External data" in text or "external data" in text:
        return finding(Reason.EXTERNAL_DATA_MISSING, words)
    return finding(Reason.INVALID_MODEL, f"ONNX Runtime refuses the model: {words}")


def _of_no_extension(model: ModelProto, words: str, foreign: list[Finding]) -> Finding:
    """Return what to say of operators of other domains that no extension has brought."""
    nodes = [
        node
        for node in graphs.walk_nodes(model)
        if f"{node.domain}:{node.op_type}(" in words and node.domain
    ]
    labels = name_nodes([graphs.label(node) for node in nodes]) or name_nodes(
        list(foreign[0].nodes)
    )
    return finding(
        Reason.CUSTOM_DOMAIN_UNSUPPORTED,
        f"neither the runtime image nor a library in spec.extensions has the operators of {labels}:"
        f" {words}",
        nodes,
        remedy=_ADD_LIBRARY,
    )


def _partial_fallback(backend: str, facts: dict[str, Any]) -> list[Finding]:
    placement = facts.get(f"placement_{backend}")
    elsewhere: list[str] = placement["elsewhere"] if placement else []
    if not placement or not elsewhere:
        return []
    total = sum(placement["nodes"].values())
    return [
        Finding(
            severity="warning",
            reason=Reason.UNSUPPORTED_OPERATOR,
            message=f"{len(elsewhere)} of {counted(total, 'node')} do not run on backend {backend}:"
            f" {name_nodes(elsewhere)}",
            nodes=tuple(elsewhere[:100]),
            node_count=len(elsewhere),
        )
    ]


def load_session(backend: str, path: str) -> dict[str, Any]:
    """Check the model and load it on a backend. Called in a child process.

    Returns:
        `complaint` of onnx.checker and `shape_nodes`, asked once, on the reference; `refused`: in
        ONNX Runtime's words, or `placement`.
    """
    answer: dict[str, Any] = {}
    if backend == _REFERENCE:
        answer["complaint"] = _check_model(path)
        answer["shape_nodes"] = shape_nodes(graphs.parse(Path(path)))
    try:
        loaded = backends.create(backend, Path(path))
    except SessionError as error:
        return answer | {"refused": str(error)}
    try:
        read_signature(loaded.session.get_inputs(), loaded.session.get_outputs(), ())
    except SignatureError as error:
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"the model cannot be served: {error}",
            remedy="export it with tensors as inputs and outputs",
        ) from error
    placement = loaded.placement
    answer["placement"] = {
        "provider": placement.provider,
        "nodes": dict(placement.nodes),
        "elsewhere": list(placement.elsewhere),
    }
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


def _refuse_errors(found: list[Finding]) -> None:
    errors = sorted(
        (entry for entry in found if entry.severity == "error"),
        key=lambda entry: _ORDER.index(entry.reason) if entry.reason in _ORDER else len(_ORDER),
    )
    if not errors:
        return
    first = errors[0]
    more = (
        f" (and {counted(len(errors) - 1, 'more finding')} in the report)"
        if len(errors) > 1
        else ""
    )
    warnings = [entry for entry in found if entry.severity != "error"]
    raise StageFailure(
        first.reason,
        first.message + more,
        nodes=first.nodes,
        remedy="",
        findings=(*errors, *warnings),
    )


def _described(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> dict[str, list[dict[str, Any]]]:
    return {
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
        "outputs": [spec.model_dump(mode="json") for spec in outputs],
    }
