"""Finds sizes and values with which a model runs, in a child process of a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from numpy.lib import npyio

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.sizes.discovery import graph
from enginewright_runtime.prepare.sizes.discovery.attempts import TrialRuns
from enginewright_runtime.prepare.sizes.discovery.problem import Problem, pose
from enginewright_runtime.prepare.sizes.discovery.ranges import Caps, explore
from enginewright_runtime.prepare.sizes.discovery.search import search
from enginewright_runtime.prepare.sizes.trial_run import observe
from enginewright_runtime.rules.behaviour import ObservedRun
from enginewright_runtime.session import loading

_ENGINE: Final = Caps(batch=8, pixels=640, length=128)  # an engine accepts no other sizes
_PROVEN: Final = Caps(batch=2, pixels=320, length=128)  # for golden samples only
_REFERENCE: Final = "cpu"


@dataclass(frozen=True)
class DiscoveryRequest:
    """A model whose sizes are to be found, and what is known of them."""

    engines: bool  # whether engines are built, which accept no other sizes: larger ones are tried
    inputs: tuple[TensorSpec, ...]
    given: tuple[ShapeProfile, ...]  # of inputs whose sizes are known
    unranked: tuple[str, ...]  # names of inputs that declare no rank
    samples: Mapping[str, Sequence[int]]  # shapes in the user's samples, by input; tried first


@dataclass(frozen=True)
class Discovered:
    """Sizes with which a model runs, or why there are none."""

    runs: int = 0  # how many were made
    # of every input, or none; all corners have run, alone and together
    profiles: tuple[ShapeProfile, ...] = ()
    fixed: tuple[str, ...] = ()  # dynamic dimensions that run at one size only: "input[axis]"
    integers: str | None = None  # the integer range with which it ran
    observed: ObservedRun | None = None  # of a run at the smallest sizes
    cause: str = ""  # why no run succeeded: of the one that executed the most nodes
    refused: str = ""  # why no engine can be built for the sizes, if that was tried


def discover(path: Path, request: DiscoveryRequest, journal: Path) -> Discovered:
    """Find sizes with which the model runs on the reference. Called in a child process.

    Pass the same `journal` of runs again to resume after a crash. Raises SessionError.
    """
    model = graphs.parse(path)
    clues = graph.read(model, [spec.name for spec in request.inputs])
    if request.engines:  # which would take no other values than those that are found
        clues = replace(clues, sizing=frozenset())
    problem = pose(request.inputs, request.given, frozenset(request.unranked), clues)
    del model
    session = loading.create(_REFERENCE, path).session
    attempts = TrialRuns(session, problem, clues.order, journal)
    result = search(problem, attempts, _start(problem, request.samples))
    if result.point is None:
        return Discovered(attempts.runs, cause=result.message)
    caps = _ENGINE if request.engines else _PROVEN
    ranges = explore(problem, result.point, attempts, caps)
    profiles = problem.profiles(ranges.corners)
    return Discovered(
        attempts.runs,
        profiles=tuple(profiles),
        fixed=tuple(
            f"{name}[{axis}]"
            for name, shape in problem.shapes.items()
            for axis, dimension in enumerate(shape)
            if set(dimension.terms) & set(ranges.fixed)
        ),
        integers=problem.integer_range(result.point).value,
        observed=observe(session, request.inputs, profiles),
    )


def _start(problem: Problem, samples: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    if not samples:
        return None
    point = problem.start
    for name, shape in samples.items():
        for size, dimension in zip(shape, problem.shapes.get(name, ()), strict=False):
            if len(dimension.terms) == 1:
                point[dimension.terms[0]] = size - dimension.number
    return point


def sample_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the first of the user's samples, by name, if they can be read."""
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
