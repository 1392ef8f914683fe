"""Finds out whether the runtime image can serve the model, and why not, before anything serves.

Everything wrong is collected, not only the first thing: an owner fixes an export once. The rules
judge the model as it lies (`rules`, docs/rules.md); then it is loaded, and run once.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport, name_nodes
from enginewright.contract.task import PrepareTask, Recipe, ShapeProfile
from onnx import ModelProto

from enginewright_runtime import backends, graphs
from enginewright_runtime.backends.base import SessionError
from enginewright_runtime.backends.words import is_out_of_memory, plain, status
from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.extensions.proving import prove
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.handoff import MODEL_FOLDER, Fetched, Validated
from enginewright_runtime.isolation import Limits, run_isolated
from enginewright_runtime.logs import counted, in_words
from enginewright_runtime.paths import Paths
from enginewright_runtime.rules import table
from enginewright_runtime.rules.base import Hit
from enginewright_runtime.rules.behaviour import Seen, declared_shapes, nan_answers
from enginewright_runtime.rules.registry import of_runtime
from enginewright_runtime.rules.text import printable
from enginewright_runtime.rules.view import Node, View
from enginewright_runtime.server.signature import SignatureError, read_signature
from enginewright_runtime.stages.inspection import Inspection, inspect
from enginewright_runtime.stages.shape_nodes import shape_nodes
from enginewright_runtime.stages.trial_run import observe

_log: Final = logging.getLogger(__name__)
_REFERENCE: Final = "cpu"  # the backend that golden outputs come from
_SECONDS: Final = (
    1800.0  # of one load: what takes longer cannot be served from pods that come and go
)
_ADD_LIBRARY: Final = "add the library that has them to spec.extensions, or export without them"
_OPERATOR: Final = re.compile(
    r"(?P<domain>[^\s:]+):(?P<name>[^\s:(]+)\(-?\d+\) is not a registered"
)
# the reason that is told when there are several: what must be mended first
_ORDER: Final = (
    Reason.MODEL_TOO_LARGE,
    Reason.INVALID_MODEL,
    Reason.EXTERNAL_DATA_MISSING,
    Reason.IR_VERSION_UNSUPPORTED,
    Reason.OPSET_UNSUPPORTED,
    Reason.CONVERSION_FAILED,
    Reason.CUSTOM_DOMAIN_UNSUPPORTED,
    Reason.UNSUPPORTED_OPERATOR,
    Reason.BACKEND_CRASHED,
    Reason.PROVIDER_MISSING,
    Reason.SHAPE_PROFILE_INVALID,
    Reason.SHAPE_PROFILE_MISSING,
)
_PLACES: Final = {rule.name: place for place, rule in enumerate(table.RULES)}


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Validate what `fetch` left; leaves `Validated`.

    Raises:
        StageFailure: the most important of the errors found, with all findings; OutOfMemory or
            Timeout, when the model could not be read or loaded for want of either.
    """
    fetched = Fetched.pick_up(paths.work)
    path = paths.work / MODEL_FOLDER / MODEL_NAME
    recipe = task.recipe
    size = sum(file.size_bytes for file in fetched.files)
    _log.info("reading the model and its weights, %s", in_words(size))
    inspected = inspect(path, recipe)
    found = list(inspected.findings)
    facts: dict[str, Any] = {}
    if inspected.fit_to_load:
        prove(path, recipe.extensions)
        if not inspected.converted:  # else `convert` loads what becomes of it
            found += _load_sessions(path, recipe, inspected, facts)
    found.sort(key=lambda each: _PLACES.get(each.rule, len(_PLACES)))
    _refuse_errors(found)
    warnings = tuple(found)
    Validated(
        opset=inspected.opset,
        ir_version=inspected.ir_version,
        nodes=inspected.nodes,
        inputs=inspected.inputs,
        outputs=inspected.outputs,
        profiles=inspected.profiles,
        warnings=warnings,
        shape_nodes=tuple(facts.get("shape_nodes", ())),
    ).leave(paths.work)
    told = f"; {warnings[0].message}" if warnings else ""
    return StageReport(
        stage="validate",
        ok=True,
        message=f"{counted(inspected.nodes, 'node')}, opset {inspected.opset}, IR version"
        f" {inspected.ir_version}{told}",
        findings=warnings,
        facts=facts | _described(inspected.inputs, inspected.outputs),
    )


def _load_sessions(
    path: Path, recipe: Recipe, inspected: Inspection, facts: dict[str, Any]
) -> list[Finding]:
    """Load on the reference, in a process of its own.

    What the backend that is to serve makes of the model `convert` finds out, since it can mend it.
    No device is lent to a prepare Job, so a backend that needs one is proven in the engine Job and
    the pods, and may run operators that the reference does not have.
    """
    found = _try_session(path, _REFERENCE, recipe, inspected, facts)
    if (seen := facts.get("run")) is not None:
        found += _judge_run(seen, inspected)
    if recipe.backend in DEVICE_BACKENDS:
        return [_left_to_device(each, recipe.backend) for each in found]
    return found


def _left_to_device(found: Finding, backend: str) -> Finding:
    """Make of an operator that only the reference lacks a warning."""
    lacks = {Reason.UNSUPPORTED_OPERATOR, Reason.CUSTOM_DOMAIN_UNSUPPORTED}
    if found.severity != "error" or found.reason not in lacks:
        return found
    told, _, _ = found.message.rpartition("; ")
    message = f"{told}; whether backend {backend} can is found out on its device"
    return found.model_copy(update={"severity": "warning", "message": message})


def _try_session(
    path: Path, backend: str, recipe: Recipe, inspected: Inspection, facts: dict[str, Any]
) -> list[Finding]:
    doing = f"loading the model on backend {backend}"
    _log.info("%s", doing)
    try:
        answer = run_isolated(
            f"{__name__}:load_session",
            doing,
            limits=Limits(seconds=_SECONDS),
            backend=backend,
            path=str(path),
            inputs=[spec.model_dump(mode="json") for spec in inspected.inputs],
            profiles=[profile.model_dump(mode="json") for profile in inspected.profiles],
            declared=[profile.model_dump(mode="json") for profile in recipe.shapes],
        )
    except StageFailure as failure:
        if failure.reason not in _ORDER:
            raise
        return [
            Finding(
                severity="error",
                reason=failure.reason,
                rule=table.BACKEND_CRASHED.name,
                message=printable(failure.message),
                nodes=failure.nodes,
                node_count=len(failure.nodes),
            )
        ]
    for name in ("shape_nodes", "run"):
        if answer.get(name) is not None:
            facts[name] = answer[name]
    facts[f"placement_{backend}"] = answer.get("placement")
    found = []
    if refused := answer.get("refused"):
        found.append(_refusal(path, backend, refused))
    if unservable := answer.get("unservable"):
        found.append(table.tell(table.NO_OUTPUT, f"the model cannot be served: {unservable}"))
    if complaint := answer.get("complaint"):
        # what the checker refuses and ONNX Runtime loads is legal in practice, as unsorted nodes
        found.append(table.tell(table.CHECKER, f"onnx.checker says: {complaint}"))
    return found


def _refusal(path: Path, backend: str, text: str) -> Finding:
    """Return the finding for ONNX Runtime's own words."""
    words = plain(text)
    if is_out_of_memory(text):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"loading the model on backend {backend} wants more memory"
        )
    told = f"ONNX Runtime refuses the model: {words}"
    if "Current official support for domain" in text:
        return table.tell(table.OPSET_TOO_NEW, told)
    if "No Op registered" in text or "is not a registered function/op" in text:
        return _unknown_operator(graphs.parse(path), text, words)
    if status(text) == "NOT_IMPLEMENTED" or backend != _REFERENCE:
        named = [
            node
            for node in View(graphs.parse(path)).nodes
            if node.proto.name and f"'{node.proto.name}'" in text
        ]
        return table.tell(
            table.REFUSED_OPERATOR, f"backend {backend} cannot run the model: {words}", _all(named)
        )
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
    told = f"ONNX Runtime has no operator for {name_nodes(list(labels))}" if labels else words
    return table.UNKNOWN_OPERATOR.finding(Hit(told, labels))


def _all(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(node.label for node in nodes)


def _judge_run(answer: dict[str, Any], inspected: Inspection) -> list[Finding]:
    seen = Seen(
        inputs={name: tuple(shape) for name, shape in answer["inputs"].items()},
        outputs={name: tuple(shape) for name, shape in answer["outputs"].items()},
        nan=frozenset(answer["nan"]),
        numeric=frozenset(answer["numeric"]),
    )
    weights = next(
        (each.message for each in inspected.findings if each.rule == table.NAN_IN_WEIGHTS.name),
        None,
    )
    cause = None if weights is None else weights.partition(";")[0]
    hits = (
        (table.NAN_ANSWERS, nan_answers(seen, cause)),
        (
            table.DECLARED_SHAPES,
            declared_shapes(
                inspected.inputs, inspected.outputs, frozenset(inspected.ranked_outputs), seen
            ),
        ),
    )
    return [rule.finding(hit) for rule, hit in hits if hit is not None]


def load_session(
    backend: str,
    path: str,
    inputs: list[dict[str, Any]],
    profiles: list[dict[str, Any]],
    declared: list[dict[str, Any]],
) -> dict[str, Any]:
    """Check the model, load it on a backend and run it once. Called in a child process.

    Returns:
        `complaint` of onnx.checker, `shape_nodes` and `run`, asked once, on the reference;
        `refused`: in ONNX Runtime's words; `unservable`: in ours; or `placement`.
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
        return answer | {"unservable": str(error)}
    placement = loaded.placement
    answer["placement"] = {
        "provider": placement.provider,
        "nodes": dict(placement.nodes),
        "elsewhere": list(placement.elsewhere),
    }
    if backend == _REFERENCE:
        answer["run"] = observe(
            loaded.session,
            [TensorSpec.model_validate(spec) for spec in inputs],
            [ShapeProfile.model_validate(profile) for profile in profiles],
            [ShapeProfile.model_validate(profile) for profile in declared],
        )
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
