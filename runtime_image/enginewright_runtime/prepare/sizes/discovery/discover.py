"""Finds sizes and values with which a model runs: what a child process of a stage does."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.task import ShapeProfile
from numpy.lib import npyio

from enginewright_runtime.graph import graphs
from enginewright_runtime.prepare.sizes.discovery import graph
from enginewright_runtime.prepare.sizes.discovery.attempts import Attempts
from enginewright_runtime.prepare.sizes.discovery.problem import Problem, pose
from enginewright_runtime.prepare.sizes.discovery.ranges import Caps, Ranges, explore
from enginewright_runtime.prepare.sizes.discovery.search import search
from enginewright_runtime.prepare.sizes.trial_run import observe
from enginewright_runtime.session import loading

_ENGINE: Final = Caps(batch=8, pixels=640, length=128)  # an engine takes no other sizes
_PROVEN: Final = Caps(batch=2, pixels=320, length=128)  # what golden samples are made of
_REFERENCE: Final = "cpu"


def discover(
    path: str,
    *,
    engines: bool,
    inputs: list[dict[str, Any]],
    known: list[dict[str, Any]],
    unranked: list[str],
    samples: dict[str, list[int]],
    journal: str,
) -> dict[str, Any]:
    """Find sizes with which the model runs on the reference. Called in a child process.

    Args:
        path: of the .onnx file.
        engines: whether it is for engines, which take no other sizes: larger ones are tried.
        inputs: as `TensorSpec`.
        known: profiles of inputs whose sizes are given, as `ShapeProfile`.
        unranked: names of inputs that declare no rank.
        samples: shapes of inputs that the user's samples have, by name; they are tried first.
        journal: a file in which runs are written down; who calls again after a crash gives it again.

    Returns:
        `profiles`: of every input, all of whose corners have run, alone and together; None: none
        was found; `runs`: how many were made; `fixed`: dimensions that are open and run at one size
        alone, as "input[axis]"; `words`: of the run that came furthest, "" where one succeeded;
        `integers`: the filling with which it ran; `seen`: as `trial_run.observe` gives it.

    Raises:
        StageFailure: as `loading.create`.
        SessionError: the model does not load.
    """
    specs = [TensorSpec.model_validate(each) for each in inputs]
    given = [ShapeProfile.model_validate(each) for each in known]
    model = graphs.parse(Path(path))
    clues = graph.read(model, [spec.name for spec in specs])
    problem = pose(specs, given, frozenset(unranked), clues)
    del model
    session = loading.create(_REFERENCE, Path(path)).session
    attempts = Attempts(session, problem, clues.order, Path(journal))
    found = search(problem, attempts, _begin(problem, samples))
    if found.point is None:
        nothing: dict[str, Any] = {"profiles": None, "fixed": [], "integers": None, "seen": None}
        return nothing | {"runs": attempts.runs, "words": found.words}
    caps = _ENGINE if engines else _PROVEN
    ranges = explore(problem, found.point, attempts, caps)
    profiles = problem.profiles(ranges.corners)
    return {
        "profiles": [each.model_dump(mode="json") for each in profiles],
        "integers": problem.filling(found.point).value,
        "seen": observe(session, specs, profiles),
        "runs": attempts.runs,
        "fixed": _places(problem, ranges),
        "words": "",
    }


def _begin(problem: Problem, samples: dict[str, list[int]]) -> dict[str, int] | None:
    """Return the point of the user's samples, where they have sizes for what is unknown."""
    if not samples:
        return None
    point = problem.start
    for name, shape in samples.items():
        for size, dimension in zip(shape, problem.shapes.get(name, ()), strict=False):
            if len(dimension.terms) == 1:
                point[dimension.terms[0]] = size - dimension.number
    return point


def _places(problem: Problem, ranges: Ranges) -> list[str]:
    return [
        f"{name}[{axis}]"
        for name, shape in problem.shapes.items()
        for axis, dimension in enumerate(shape)
        if set(dimension.terms) & set(ranges.fixed)
    ]


def sample_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the first of the user's samples, by name; {}: they cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, npyio.NpzFile):
                return {}
            first = file.files[0].rpartition("/")[0]
            return {
                key.removeprefix(f"{first}/"): list(file[key].shape)
                for key in file.files
                if key.rpartition("/")[0] == first
            }
    except (ValueError, OSError, EOFError, IndexError):
        return {}
