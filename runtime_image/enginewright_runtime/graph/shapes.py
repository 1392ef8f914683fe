"""Resolves the sizes of inputs: checks declared shape profiles and fills in defaults. Pure.

Only the batch, the first dimension, has default sizes (1, 8, 32; smaller if runs are expensive). Any
other dynamic dimension stays open unless it, or another one of its name, is declared. Engines need
its sizes; other backends accept any size, and golden inputs get sizes with which the model ran.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, Proposal
from enginewright_contract.task import ShapeProfile

from enginewright_runtime.core.logs import format_count

CORNERS: Final = ("min", "opt", "max")


class Sizes(NamedTuple):
    """Sizes that one dimension may have."""

    min: int
    opt: int
    max: int


DEFAULT_BATCH: Final = Sizes(1, 8, 32)


@dataclass(frozen=True)
class Resolved:
    """Profiles of the inputs whose sizes are known, and findings about the declared ones."""

    profiles: tuple[ShapeProfile, ...]
    findings: tuple[Finding, ...]
    unsized: tuple[str, ...] = ()  # inputs whose sizes are not all known


def resolve(
    inputs: Sequence[TensorSpec], declared: Sequence[ShapeProfile], unranked: frozenset[str]
) -> Resolved:
    """Return the known sizes of the inputs; `unranked` are those without a declared rank."""
    by_name = {spec.name: spec for spec in inputs}
    checked = [
        (profile, _check(profile, by_name, profile.input in unranked)) for profile in declared
    ]
    findings = [finding for _, finding in checked if finding is not None]
    findings += _duplicates(declared)
    wrong = {profile.input for profile, finding in checked if finding is not None}
    profiles = {
        profile.input: profile for profile in declared if profile.input in by_name.keys() - wrong
    }
    named = _collect_named_sizes(profiles, by_name)
    unsized: list[str] = []
    for spec in inputs:
        if spec.name in profiles or spec.name in wrong:
            continue
        dimensions = [_sizes_of(spec, index, named) for index in range(len(spec.shape))]
        sizes = [entry for entry in dimensions if entry is not None]
        if len(sizes) < len(dimensions) or spec.name in unranked:
            unsized.append(spec.name)
        else:
            profiles[spec.name] = ShapeProfile(
                input=spec.name,
                min=tuple(entry.min for entry in sizes),
                opt=tuple(entry.opt for entry in sizes),
                max=tuple(entry.max for entry in sizes),
            )
    return Resolved(
        tuple(profiles[spec.name] for spec in inputs if spec.name in profiles),
        tuple(findings),
        tuple(unsized),
    )


def points(profiles: Sequence[ShapeProfile]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the input shapes of each corner; equal ones once, under the first corner's name."""
    corners: dict[str, dict[str, tuple[int, ...]]] = {}
    for corner in CORNERS:
        shapes: dict[str, tuple[int, ...]] = {
            profile.input: getattr(profile, corner) for profile in profiles
        }
        if shapes not in corners.values():
            corners[corner] = shapes
    return corners


def opt_sample(samples: Sequence[str]) -> str:
    """Return the opt sample, else min, which has its shapes, else the middle one of a user's samples, ordered by size."""
    return next((item for item in ("opt", "min") if item in samples), samples[len(samples) // 2])


def find_defaulted(
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    declared: Sequence[ShapeProfile],
) -> frozenset[str]:
    """Return the inputs whose batch is not declared and has the default sizes."""
    by_name = {spec.name: spec for spec in inputs}
    named = _collect_named_sizes(
        {profile.input: profile for profile in declared if profile.input in by_name}, by_name
    )
    own = {profile.input for profile in declared}
    return frozenset(
        profile.input
        for profile in profiles
        if profile.input not in own
        and (shape := by_name[profile.input].shape)  # not of a scalar or an undeclared rank
        and not isinstance(first := shape[0], int)
        and first not in named
        and Sizes(profile.min[0], profile.opt[0], profile.max[0]) == DEFAULT_BATCH
    )


def with_batch(
    profiles: Sequence[ShapeProfile], names: frozenset[str], most: int
) -> tuple[ShapeProfile, ...]:
    """Return the profiles with a batch of at most `most` for the inputs `names`."""
    middle = min(DEFAULT_BATCH.opt, most)
    return tuple(
        profile
        if profile.input not in names
        else profile.model_copy(
            update={"opt": (middle, *profile.opt[1:]), "max": (most, *profile.max[1:])}
        )
        for profile in profiles
    )


def _check(
    profile: ShapeProfile, inputs: Mapping[str, TensorSpec], unranked: bool
) -> Finding | None:
    spec = inputs.get(profile.input)
    if spec is None:
        names = ", ".join(inputs) or "none"
        return _invalid(profile, f"the model has no input of that name; it has {names}")
    ranks = {len(profile.min), len(profile.opt), len(profile.max)}
    if len(ranks) > 1 or (not unranked and ranks != {len(spec.shape)}):
        dimensions = format_count(len(spec.shape), "dimension")
        return _invalid(
            profile,
            f"min, opt and max need {dimensions} each, because the model has {_shape(spec)}",
        )
    for index, (low, opt, high) in enumerate(
        zip(profile.min, profile.opt, profile.max, strict=True)
    ):
        if not 0 <= low <= opt <= high:
            return _invalid(profile, f"dimension {index} has {low}, {opt}, {high}: sizes must rise")
        fixed = None if unranked else spec.shape[index]
        if isinstance(fixed, int) and {low, opt, high} != {fixed}:
            return _invalid(
                profile,
                f"dimension {index} is fixed to {fixed} in the model, which has {_shape(spec)}",
            )
        if not isinstance(fixed, int) and not opt:
            return _invalid(profile, f"dimension {index} has opt 0: only min may be 0")
    return None


def _duplicates(declared: Sequence[ShapeProfile]) -> list[Finding]:
    names = [profile.input for profile in declared]
    return [
        _invalid(profile, "it is declared more than once")
        for index, profile in enumerate(declared)
        if profile.input in names[:index]
    ]


def _collect_named_sizes(
    profiles: Mapping[str, ShapeProfile], inputs: Mapping[str, TensorSpec]
) -> dict[str, Sizes]:
    named: dict[str, Sizes] = {}
    for name, profile in profiles.items():
        rows = zip(inputs[name].shape, profile.min, profile.opt, profile.max, strict=False)
        for dimension, low, opt, high in rows:
            if isinstance(dimension, str):
                named.setdefault(dimension, Sizes(low, opt, high))
    return named


def _sizes_of(spec: TensorSpec, index: int, named: Mapping[str, Sizes]) -> Sizes | None:
    dimension = spec.shape[index]
    if isinstance(dimension, int):
        return Sizes(dimension, dimension, dimension)
    if isinstance(dimension, str) and dimension in named:
        return named[dimension]
    return DEFAULT_BATCH if index == 0 else None


def missing(
    inputs: Sequence[TensorSpec],
    unsized: Sequence[str],
    unranked: Sequence[str] = (),
    working: Sequence[ShapeProfile] = (),
    refused: str = "",
) -> Finding:
    """Return the finding for inputs whose sizes, or ranks (`unranked`), are not all known.

    It proposes `working` profiles, with which the model ran, and says why no engine can be built for them: `refused`.
    """
    causes = [
        f"input {spec.name} has {'an unknown rank' if spec.name in unranked else _shape(spec)}"
        for spec in inputs
        if spec.name in unsized
    ]
    fixed = {
        spec.name
        for spec in inputs
        if spec.name not in unranked and all(isinstance(size, int) for size in spec.shape)
    }
    shapes = tuple(profile for profile in working if profile.input not in fixed)
    why = f", and with sizes that it runs with none is built: {refused}" if refused else ""
    return Finding(
        reason=Reason.SHAPE_PROFILE_MISSING,
        cause=f"{'; '.join(causes)}: an engine needs sizes for all but the first dimension{why}",
        remedy="add to spec, with sizes of yours (these ran)" if shapes else None,
        proposal=Proposal(shapes=shapes) if shapes else None,
    )


def _invalid(profile: ShapeProfile, cause: str) -> Finding:
    return Finding(
        reason=Reason.SHAPE_PROFILE_INVALID, cause=f"spec.shapes, input {profile.input}: {cause}"
    )


def _shape(spec: TensorSpec) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in spec.shape) + "]"
