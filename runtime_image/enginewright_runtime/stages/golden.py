"""Makes the golden inputs and outputs that every later artefact and serving pod is compared with.

Outputs come from ONNX Runtime's CPU provider. Where the samples carry expected outputs, those of
the framework that the model was exported from, the reference itself is compared with them; and the
backend that is to serve is run on the same inputs, in a process that may crash, unless it needs a
device: none is lent to a prepare Job. What each node costs is profiled on the same inputs.
"""

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import NodeCost
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import PrepareTask, Recipe

from enginewright_runtime.backends.base import SessionError
from enginewright_runtime.backends.words import plain
from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.handoff import (
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    SAMPLES_FILE,
    Converted,
    Golden,
    Validated,
)
from enginewright_runtime.isolation import run_isolated
from enginewright_runtime.logs import counted, in_words
from enginewright_runtime.paths import Paths
from enginewright_runtime.stages import costs
from enginewright_runtime.stages.golden_inputs import (
    Array,
    Filling,
    Sample,
    generate,
    read_samples,
)
from enginewright_runtime.stages.golden_run import EXPECTED, INPUTS, OUTPUTS

_log: Final = logging.getLogger(__name__)
_LARGEST: Final = 256 << 20  # bytes of inputs, or outputs, that one sample may store
_RUNNER: Final = "enginewright_runtime.stages.golden_run"


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Make golden inputs and outputs; leaves `Golden`.

    Raises:
        StageFailure: ParityFailed, BackendCrashed, OutOfMemory or ShapeProfileInvalid.
    """
    validated = Validated.pick_up(paths.work)
    folder = paths.work / GOLDEN_FOLDER
    folder.mkdir(exist_ok=True)
    recipe = task.recipe
    findings: list[Finding] = []
    if recipe.samples_uri is not None:
        source = "samples"
        samples = read_samples(paths.work / SAMPLES_FILE, validated.inputs, validated.outputs)
        refused, findings = _run_reference(paths, recipe, samples)
        if refused:
            name, words = next(iter(refused.items()))
            raise StageFailure(
                Reason.PARITY_FAILED,
                f"the model refuses sample {name!r} of spec.parity.samples: {words}",
                remedy="correct the sample",
            )
    else:
        source = "generated"
        samples = _generate(paths, recipe, validated, findings)
    on_device = recipe.backend in DEVICE_BACKENDS
    if recipe.backend != "cpu" and not on_device:
        _run_backend(paths, recipe, findings)
    node_costs = _profile(paths, findings)
    Golden(source=source, samples=len(samples), node_costs=node_costs).leave(paths.work)
    size = sum(path.stat().st_size for path in folder.iterdir())
    told = f"; backend {recipe.backend} is compared with them on its device" if on_device else ""
    told += f"; {findings[0].message}" if findings else ""
    return StageReport(
        stage="golden",
        ok=True,
        message=f"{counted(len(samples), 'golden sample')} ({source}), {in_words(size)}{told}",
        findings=tuple(findings),
    )


def _generate(
    paths: Paths, recipe: Recipe, validated: Validated, findings: list[Finding]
) -> list[Sample]:
    """Generate inputs; where the model refuses integers, try others that are more often indices."""
    fillings = tuple(Filling) if _has_free_integers(validated, recipe) else (Filling.DIGITS,)
    refused: dict[str, str] = {}
    for filling in fillings:
        samples = generate(validated.inputs, validated.profiles, recipe.shapes, filling)
        kept, left_out = _affordable(samples)
        refused, warnings = _run_reference(paths, recipe, kept)
        # in the end what is left of the smallest shapes has to do
        if not refused or (filling == fillings[-1] and kept[0].name not in refused):
            findings += [*left_out, *warnings]
            if refused:
                _refuse_or_warn(kept, refused, recipe, findings)
            return [sample for sample in kept if sample.name not in refused]
    raise StageFailure(
        Reason.PARITY_FAILED,
        "no golden inputs could be generated; ONNX Runtime refuses values from"
        f" {', '.join(fillings)}: {next(iter(refused.values()))}",
        remedy=(
            'give the inputs a range in spec.shapes (range: {low: "0", high: "1"}), or inputs of'
            " your own in spec.parity.samples"
        ),
    )


def _refuse_or_warn(
    samples: list[Sample], refused: dict[str, str], recipe: Recipe, findings: list[Finding]
) -> None:
    """Sizes that were declared must work; the default batch sizes are only our guess."""
    corner, words = next(iter(refused.items()))
    inputs = next(sample.inputs for sample in samples if sample.name == corner)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
    if recipe.shapes:
        raise StageFailure(
            Reason.SHAPE_PROFILE_INVALID,
            f"the model fails with the {corner} shapes of spec.shapes ({shapes}): {words}",
        )
    findings.append(_warning(f"the model fails with {shapes}, so batches may not work: {words}"))


def _has_free_integers(validated: Validated, recipe: Recipe) -> bool:
    ranged = {profile.input for profile in recipe.shapes if profile.low is not None}
    return any(
        spec.dtype.startswith(("int", "uint")) and spec.name not in ranged
        for spec in validated.inputs
    )


def _affordable(samples: list[Sample]) -> tuple[list[Sample], list[Finding]]:
    """Leave out samples too large to store, but never the first."""
    kept, left_out = samples[:1], []
    for sample in samples[1:]:
        size = sum(array.nbytes for array in sample.inputs.values())
        if size <= _LARGEST:
            kept.append(sample)
        else:
            left_out.append(_warning(f"the {sample.name} shapes ({in_words(size)}) are not proven"))
    return kept, left_out


def _run_reference(
    paths: Paths, recipe: Recipe, samples: list[Sample]
) -> tuple[dict[str, str], list[Finding]]:
    """Run the samples on the CPU provider, which writes both golden files.

    Returns what the model said of samples that it refuses, and warnings.
    """
    folder = paths.work / GOLDEN_FOLDER
    _save(folder / INPUTS, {_key(s, n): a for s in samples for n, a in s.inputs.items()})
    _save(folder / EXPECTED, {_key(s, n): a for s in samples for n, a in s.expected.items()})
    _log.info("running %s on backend cpu", counted(len(samples), "golden sample"))
    try:
        answer = run_isolated(
            f"{_RUNNER}:run_reference",
            "running the golden inputs on backend cpu",
            model=str(paths.work / MODEL_FOLDER / MODEL_NAME),
            folder=str(folder),
            rtol=recipe.rtol,
            atol=recipe.atol,
        )
    except SessionError as error:
        # `validate` lets such models pass for backends that need a device alone
        return {}, [_without_reference(paths, recipe, samples, plain(str(error)))]
    finally:
        (folder / EXPECTED).unlink()
    if differs := answer["differs"]:
        raise StageFailure(
            Reason.PARITY_FAILED, f"{differs} against the expected outputs in spec.parity.samples"
        )
    return answer["refused"], [_warning(text) for text in answer["warnings"]]


def _without_reference(paths: Paths, recipe: Recipe, samples: list[Sample], words: str) -> Finding:
    """Take the expected outputs as golden ones, where the samples have them all."""
    told = f"ONNX Runtime's CPU provider cannot run the model: {words}"
    outputs = {spec.name for spec in Validated.pick_up(paths.work).outputs}
    if not all(outputs <= set(sample.expected) for sample in samples):
        raise StageFailure(
            Reason.UNSUPPORTED_OPERATOR,
            f"{told}; so there is nothing to compare backend {recipe.backend} with",
            remedy="give inputs with the expected values of every output in spec.parity.samples",
        )
    expected = {_key(sample, name): a for sample in samples for name, a in sample.expected.items()}
    _save(paths.work / GOLDEN_FOLDER / OUTPUTS, expected)
    return _warning(f"{told}; golden outputs are those of spec.parity.samples")


def _run_backend(paths: Paths, recipe: Recipe, findings: list[Finding]) -> None:
    _log.info("running the golden samples on backend %s", recipe.backend)
    answer = run_isolated(
        f"{_RUNNER}:run_backend",
        f"running the golden inputs on backend {recipe.backend}",
        model=str(_converted(paths)),
        folder=str(paths.work / GOLDEN_FOLDER),
        backend=recipe.backend,
        rtol=recipe.rtol,
        atol=recipe.atol,
    )
    if refused := answer["refused"]:
        name, words = next(iter(refused.items()))
        raise StageFailure(
            Reason.UNSUPPORTED_OPERATOR,
            f"backend {recipe.backend} loads the model and fails on golden sample {name!r}: {words}",
        )
    if differs := answer["differs"]:
        raise StageFailure(
            Reason.PARITY_FAILED,
            f"on backend {recipe.backend}, {differs} against ONNX Runtime's CPU provider",
        )
    findings += [_warning(text) for text in answer["warnings"]]


def _profile(paths: Paths, findings: list[Finding]) -> tuple[NodeCost, ...]:
    """Return what the nodes cost; nothing, with a warning, where that cannot be found out."""
    _log.info("profiling the model on backend cpu")
    try:
        return costs.measure(_converted(paths), paths.work / GOLDEN_FOLDER / INPUTS)
    except StageFailure as failure:
        reason, words = failure.reason, failure.message
    except SessionError as error:
        reason, words = Reason.INTERNAL_ERROR, plain(str(error))
    message = f"what each node costs is not known, so no maxComputeShare can be kept: {words}"
    findings.append(Finding(severity="warning", reason=reason, message=message))
    return ()


def _converted(paths: Paths) -> Path:
    return paths.work / Converted.pick_up(paths.work).folder / MODEL_NAME


def _save(path: Path, arrays: dict[str, Array]) -> None:
    values: dict[str, Any] = arrays
    np.savez(path, **values)


def _key(sample: Sample, name: str) -> str:
    return f"{sample.name}/{name}"


def _warning(message: str) -> Finding:
    return Finding(severity="warning", reason=Reason.PARITY_FAILED, message=message)
