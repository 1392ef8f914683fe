"""Checks whether the runtime image can serve the model, and collects all findings, before conversion."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport
from enginewright_contract.task import PrepareTask, Recipe, ShapeProfile
from pydantic_core import to_jsonable_python

from enginewright_runtime.core import shared_results
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import MODEL_FOLDER, SAMPLES_FILE, Fetched, Validated
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes, format_count
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.shapes import find_defaulted, with_batch
from enginewright_runtime.prepare.quantize.widening import emulate
from enginewright_runtime.prepare.sizes.batch import Fitted, fit
from enginewright_runtime.prepare.sizes.discovery.discover import Discovered
from enginewright_runtime.prepare.sizes.sizing import find_sizes, find_unsized
from enginewright_runtime.prepare.validate.inspection import Inspection, inspect
from enginewright_runtime.prepare.validate.processing import check_steps
from enginewright_runtime.prepare.validate.trial import REFERENCE, load_and_run
from enginewright_runtime.rules import table
from enginewright_runtime.rules.base import Hit
from enginewright_runtime.rules.behaviour import ObservedRun, check_declared_shapes, nan_answers
from enginewright_runtime.rules.text import join_quoted, printable
from enginewright_runtime.session.extensions.verification import verify_libraries

_log: Final = logging.getLogger(__name__)
_EMULATED: Final = "validate-emulated.onnx"  # beside the model
# of one load: a model that takes longer cannot serve from pods that restart
_SECONDS: Final = 1800.0
_KEEP_BATCH: Final = (
    "export again so that every output has one row for each row of the inputs: a Reshape, Slice or"
    " Squeeze with constants loses the batch"
)
# which reason is reported if there are several: the one to fix first
_ORDER: Final = (
    Reason.MODEL_TOO_LARGE,
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
_POSITIONS: Final = {rule.name: position for position, rule in enumerate(table.RULES)}


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Validate what `fetch` left; leaves `Validated`, or raises the first error with all findings."""
    fetched = Fetched.read(paths.work)
    path = paths.work / MODEL_FOLDER / MODEL_NAME
    recipe = task.recipe
    size = sum(file.size_bytes for file in fetched.files)
    _log.info("reading the model and its weights, %s", format_bytes(size))
    inspected = inspect(path, recipe)
    findings = list(inspected.findings)
    facts: dict[str, Any] = {}
    sized = Discovered()
    if not inspected.errors:
        verify_libraries(path, recipe.extensions)
        if not inspected.converted:  # else `convert` loads the converted model
            findings += _load_sessions(path, recipe, inspected, facts)
            sized = _find_sizes(paths.work, recipe, inspected, facts)
            findings += _judge_runs(sized, inspected, recipe, facts)
    if not inspected.converted or inspected.errors:
        findings += find_unsized(
            inspected.inputs, inspected.unsized, inspected.unranked, recipe, sized
        )
    findings = _one_per_rule(findings)
    _refuse_errors(findings)
    fitted = Fitted(_profiles(sized, inspected, recipe, facts))
    if not inspected.converted:
        fitted = fit(path, recipe, inspected.inputs, fitted.profiles)
    warnings = tuple(_one_per_rule([*findings, *fitted.findings]))
    steps = check_steps(task, paths, fetched, inspected)
    if steps:
        facts["processing"] = [step.model_dump(mode="json") for step in steps]
    Validated(
        opset=inspected.opset,
        ir_version=inspected.ir_version,
        nodes=inspected.nodes,
        inputs=inspected.inputs,
        outputs=inspected.outputs,
        profiles=fitted.profiles,
        warnings=warnings,
        shape_nodes=tuple(facts.get("shape_nodes", ())),
        steps=steps,
    ).write(paths.work)
    warning = f"; {warnings[0].cause}" if warnings else ""
    return StageReport(
        stage="validate",
        ok=True,
        message=f"{format_count(inspected.nodes, 'node')}, opset {inspected.opset}, IR version"
        f" {inspected.ir_version}{warning}",
        findings=warnings,
        facts=to_jsonable_python(
            {**facts, "inputs": inspected.inputs, "outputs": inspected.outputs}
        ),
    )


def _load_sessions(
    path: Path, recipe: Recipe, inspected: Inspection, facts: dict[str, Any]
) -> list[Finding]:
    """Load on the reference, in a separate process; `convert` tries the backend that is to serve.

    Without a device here, the engine Job and the pods prove a backend that needs one.
    """
    findings = _try_session(path, recipe, inspected, facts)
    if recipe.backend in DEVICE_BACKENDS:
        return [_as_device_warning(finding, recipe.backend) for finding in findings]
    return findings


def _as_device_warning(finding: Finding, backend: str) -> Finding:
    lacks = {Reason.UNSUPPORTED_OPERATOR, Reason.CUSTOM_DOMAIN_UNSUPPORTED}
    if finding.severity != "error" or finding.reason not in lacks:
        return finding
    return finding.model_copy(
        update={
            "severity": "warning",
            "cause": f"{finding.cause}; whether backend {backend} supports them is found on its device",
        }
    )


def _try_session(
    path: Path, recipe: Recipe, inspected: Inspection, facts: dict[str, Any]
) -> list[Finding]:
    doing = f"loading the model on backend {REFERENCE}"
    _log.info("%s", doing)
    try:
        about = (inspected.inputs, inspected.profiles, sorted(_find_batched(inspected, recipe)))
        call = Call(load_and_run, doing, Limits.of_model(_SECONDS))
        trial = shared_results.run_shared(
            call, shared_results.ResultKey(path, recipe, about), path, *about
        )
    except StageFailure as failure:
        if failure.reason not in _ORDER:
            raise
        update = {"rule": table.BACKEND_CRASHED.name, "cause": printable(failure.cause)}
        return [failure.finding.model_copy(update=update)]
    placed = trial.placement
    facts[f"placement_{REFERENCE}"] = placed and {
        "provider": placed.provider,
        "nodes": dict(placed.nodes),
        "elsewhere": list(placed.elsewhere),
    }
    facts |= {"shape_nodes": list(trial.shape_nodes), "one_batch": trial.one_batch}
    for name, run in (("run", trial.run), ("batch_run", trial.batch_run)):
        if run is not None:
            facts[name] = run
    return list(trial.findings)


def _find_sizes(
    work: Path, recipe: Recipe, inspected: Inspection, facts: dict[str, Any]
) -> Discovered:
    invalid = any(finding.reason is Reason.SHAPE_PROFILE_INVALID for finding in inspected.findings)
    if invalid or not (inspected.unsized or inspected.switched):
        return Discovered()
    path: Path | None = work / MODEL_FOLDER / MODEL_NAME
    if path is not None and facts.get(f"placement_{REFERENCE}") is None:
        path = emulate(path, _EMULATED)
    if path is None:
        return Discovered(cause=f"backend {REFERENCE} does not load the model")
    samples, inputs = work / SAMPLES_FILE, inspected.inputs
    sized = find_sizes(path, recipe, inputs, inspected.profiles, inspected.unranked, samples)
    (work / MODEL_FOLDER / _EMULATED).unlink(missing_ok=True)
    if sized.observed is not None:
        facts["run"] = sized.observed
    return sized


def _profiles(
    sized: Discovered, inspected: Inspection, recipe: Recipe, facts: dict[str, Any]
) -> tuple[ShapeProfile, ...]:
    profiles = sized.profiles or inspected.profiles
    if facts.get("one_batch"):
        return with_batch(profiles, _find_batched(inspected, recipe), 1)
    return profiles


def _find_batched(inspected: Inspection, recipe: Recipe) -> frozenset[str]:
    return find_defaulted(inspected.inputs, inspected.profiles, recipe.shapes)


def _judge_runs(
    sized: Discovered, inspected: Inspection, recipe: Recipe, facts: dict[str, Any]
) -> list[Finding]:
    findings = [] if (observed := facts.get("run")) is None else _judge_run(observed, inspected)
    if (batch_run := facts.get("batch_run")) is not None:
        findings += _judge_batch(batch_run, inspected)
    fixed = sized.fixed
    if facts.get("one_batch"):
        fixed += tuple(f"{name}[0]" for name in sorted(_find_batched(inspected, recipe)))
    if fixed:
        sizes = {profile.input: profile.min for profile in sized.profiles or inspected.profiles}
        ran = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
        message = f"the model runs with {ran}, and with no other size that was tried for {join_quoted(fixed)}"
        findings.append(table.finding(table.ONE_SIZE, message))
    return findings


def _judge_run(observed: ObservedRun, inspected: Inspection) -> list[Finding]:
    cause = next(
        (
            finding.cause
            for finding in inspected.findings
            if finding.rule == table.NAN_IN_WEIGHTS.name
        ),
        None,
    )
    hits = (
        (table.NAN_ANSWERS, nan_answers(observed, cause)),
        (table.DECLARED_SHAPES, _find_wrong_shapes(observed, inspected)),
    )
    return [rule.finding(hit) for rule, hit in hits if hit is not None]


def _judge_batch(observed: ObservedRun, inspected: Inspection) -> list[Finding]:
    """Compare the outputs of a larger batch with the declared shapes: an output may keep one row of it."""
    hit = _find_wrong_shapes(observed, inspected)
    return [] if hit is None else [table.DECLARED_SHAPES.finding(replace(hit, remedy=_KEEP_BATCH))]


def _find_wrong_shapes(observed: ObservedRun, inspected: Inspection) -> Hit | None:
    ranked = frozenset(inspected.ranked_outputs)
    return check_declared_shapes(inspected.inputs, inspected.outputs, ranked, observed)


def _one_per_rule(findings: list[Finding]) -> list[Finding]:
    """Return the findings in the table's order, one per rule: the session may repeat a rule's."""
    kept: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda item: item.severity != "error"):
        kept.setdefault(finding.rule, finding)
    return sorted(kept.values(), key=lambda finding: _POSITIONS[finding.rule])


def _refuse_errors(findings: list[Finding]) -> None:
    errors = sorted(
        (entry for entry in findings if entry.severity == "error"),
        key=lambda entry: _ORDER.index(entry.reason) if entry.reason in _ORDER else len(_ORDER),
    )
    if not errors:
        return
    first = errors[0]
    others = f" (and {format_count(len(errors) - 1, 'more finding')} in the report)"
    warnings = [entry for entry in findings if entry.severity != "error"]
    failure = first.model_copy(update={"cause": first.cause + (others if len(errors) > 1 else "")})
    raise StageFailure.of(failure, (*errors, *warnings))
