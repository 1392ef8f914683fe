"""Finds sizes of a model's dynamic dimensions, in a child process that may crash or be slow."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Fault, Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import Recipe, ShapeProfile

from enginewright_runtime.core import shared_results
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.graph.shapes import find_defaulted, missing
from enginewright_runtime.prepare.sizes.discovery.discover import (
    Discovered,
    DiscoveryRequest,
    discover,
    sample_shapes,
)
from enginewright_runtime.prepare.sizes.trial_build import buildable
from enginewright_runtime.rules import table
from enginewright_runtime.rules.text import printable

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 900.0  # of loading and all runs, which have their own limit
_GIVE_SIZES: Final = (
    "add the inputs to spec.shapes with min, opt and max, or provide inputs in spec.parity.samples"
)
_MAX_RESTARTS: Final = 3  # after crashes


def find_sizes(
    path: Path,
    recipe: Recipe,
    inputs: Sequence[TensorSpec],
    given: Sequence[ShapeProfile],
    unranked: Sequence[str],
    samples: Path,
) -> Discovered:
    """Run the model at `path` on the reference until sizes are found with which it runs.

    `given` are profiles of inputs with known sizes; sizes of the user's `samples`, if any, are
    tried first.
    """
    doing = "running the model to find sizes that it accepts"
    _log.info("%s", doing)
    backend = recipe.backend
    open_sizes = len(given) < len(inputs)
    if open_sizes:  # a default batch is an assumption as well: it must match the sizes found
        guessed = find_defaulted(inputs, given, recipe.shapes)
        given = [profile for profile in given if profile.input not in guessed]
    discovered = Discovered()
    request = DiscoveryRequest(
        backend in COMPILED_BACKENDS,
        tuple(inputs),
        tuple(given),
        tuple(unranked),
        sample_shapes(samples),
    )
    limits = Limits.of_model(_SECONDS)
    call = Call(discover, doing, limits)
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(_MAX_RESTARTS + 1):
            try:
                key = shared_results.ResultKey(path, recipe, request)
                discovered = shared_results.run_shared(
                    call, key, path, request, Path(folder) / "runs.jsonl"
                )
            except SessionError as error:
                return Discovered(cause=plain(str(error)))
            except StageFailure as failure:
                has_ended = failure.reason.facets.fault is Fault.LOAD
                if not has_ended or attempt == _MAX_RESTARTS:
                    return Discovered(cause=failure.cause)
                _log.info("%s; restarting without the run that failed", failure.cause)
                continue
            break
    _log.info("finished %s", format_count(discovered.runs, "run"))
    if discovered.profiles and open_sizes and backend in COMPILED_BACKENDS:
        tried = buildable(path, backend, discovered.profiles)
        return replace(discovered, profiles=tried.profiles, refused=tried.refused)
    return discovered


def find_unsized(
    inputs: Sequence[TensorSpec],
    names: Sequence[str],
    unranked: Sequence[str],
    recipe: Recipe,
    sized: Discovered,
) -> list[Finding]:
    """Return the findings on the inputs `names` with dynamic dimensions, by the backend that is to serve.

    Engines need declared sizes; other backends only for golden inputs, which samples may provide.
    """
    if not names:
        return []
    if recipe.backend in COMPILED_BACKENDS:
        finding = missing(inputs, names, unranked, sized.profiles, sized.refused)
    elif sized.profiles or recipe.samples_uri is not None or not sized.cause:
        return []
    else:
        finding = Finding(
            reason=Reason.SHAPE_PROFILE_MISSING,
            cause="no sizes were found with which the model runs, so golden inputs are missing:"
            f" {sized.cause}",
            remedy=_GIVE_SIZES,
        )
    update = {"rule": table.SHAPES_MISSING.name, "cause": printable(finding.cause)}
    return [finding.model_copy(update=update)]
