"""Which sizes every input may have: declared shape profiles checked, defaults filled in. Pure.

Only the batch, the first dimension, has a default (1, 8, 32). Any other dynamic dimension must be
declared, except one whose name a profile of another input gives sizes already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from enginewright.contract.manifest import TensorSpec
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import Finding
from enginewright.contract.task import ShapeProfile

CORNERS: Final = ("min", "opt", "max")


class Sizes(NamedTuple):
    """Sizes that one dimension may have."""

    min: int
    opt: int
    max: int


DEFAULT_BATCH: Final = Sizes(1, 8, 32)
_PROPOSED_BATCH: Final = Sizes(1, 1, 8)
_PROPOSED_CHANNELS: Final = Sizes(3, 3, 3)
_MOST_CHANNELS: Final = 4  # of an image; a last dimension no larger is its channels
_PROPOSED_PIXELS: Final = Sizes(32, 320, 640)
_PROPOSED_LENGTH: Final = Sizes(1, 64, 128)


@dataclass(frozen=True)
class Resolved:
    """A profile for every input, and what is wrong with the declared ones."""

    profiles: tuple[ShapeProfile, ...]
    findings: tuple[Finding, ...]


def resolve(
    inputs: Sequence[TensorSpec], declared: Sequence[ShapeProfile], unranked: frozenset[str]
) -> Resolved:
    """Return sizes of every input; `unranked` names inputs whose rank the model leaves open."""
    by_name = {spec.name: spec for spec in inputs}
    findings = [
        finding
        for profile in declared
        if (finding := _check(profile, by_name, profile.input in unranked))
    ]
    findings += _duplicates(declared)
    profiles = {profile.input: profile for profile in declared if profile.input in by_name}
    named = _named_sizes(profiles, by_name)
    missing: list[TensorSpec] = []
    for spec in inputs:
        if spec.name in profiles:
            continue
        sizes = [_known_sizes(spec, index, named) for index in range(len(spec.shape))]
        known = [entry for entry in sizes if entry is not None]
        if len(known) < len(sizes) or spec.name in unranked:
            missing.append(spec)
        else:
            profiles[spec.name] = _profile(spec.name, known)
    if missing:
        findings.append(_missing(missing, unranked, named))
    return Resolved(
        tuple(profiles[spec.name] for spec in inputs if spec.name in profiles), tuple(findings)
    )


def points(profiles: Sequence[ShapeProfile]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the corners as input shapes, each set of shapes once, by the corner's name."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for corner in CORNERS:
        shapes: dict[str, tuple[int, ...]] = {
            profile.input: getattr(profile, corner) for profile in profiles
        }
        if shapes not in found.values():
            found[corner] = shapes
    return found


def _check(
    profile: ShapeProfile, inputs: Mapping[str, TensorSpec], unranked: bool
) -> Finding | None:
    spec = inputs.get(profile.input)
    if spec is None:
        names = ", ".join(inputs) or "none"
        return _invalid(profile, f"the model has no input of that name; it has {names}")
    ranks = {len(profile.min), len(profile.opt), len(profile.max)}
    if len(ranks) > 1 or (not unranked and ranks != {len(spec.shape)}):
        return _invalid(profile, f"min, opt and max need {_dimensions(spec)}")
    for index, (low, usual, high) in enumerate(
        zip(profile.min, profile.opt, profile.max, strict=True)
    ):
        if not 1 <= low <= usual <= high:
            return _invalid(
                profile, f"dimension {index} has {low}, {usual}, {high}: sizes must rise"
            )
        fixed = None if unranked else spec.shape[index]
        if isinstance(fixed, int) and {low, usual, high} != {fixed}:
            return _invalid(
                profile,
                f"dimension {index} is fixed to {fixed} in the model, which has {_shape(spec)}",
            )
    return None


def _duplicates(declared: Sequence[ShapeProfile]) -> list[Finding]:
    names = [profile.input for profile in declared]
    return [
        _invalid(profile, "it is declared more than once")
        for index, profile in enumerate(declared)
        if profile.input in names[:index]
    ]


def _named_sizes(
    profiles: Mapping[str, ShapeProfile], inputs: Mapping[str, TensorSpec]
) -> dict[str, Sizes]:
    named: dict[str, Sizes] = {}
    for name, profile in profiles.items():
        rows = zip(inputs[name].shape, profile.min, profile.opt, profile.max, strict=False)
        for dimension, low, usual, high in rows:
            if isinstance(dimension, str):
                named.setdefault(dimension, Sizes(low, usual, high))
    return named


def _known_sizes(spec: TensorSpec, index: int, named: Mapping[str, Sizes]) -> Sizes | None:
    dimension = spec.shape[index]
    if isinstance(dimension, int):
        return Sizes(dimension, dimension, dimension)
    if isinstance(dimension, str) and dimension in named:
        return named[dimension]
    return DEFAULT_BATCH if index == 0 else None


def _missing(
    specs: Sequence[TensorSpec], unranked: frozenset[str], named: Mapping[str, Sizes]
) -> Finding:
    """Return the finding for inputs without sizes, with YAML that can be pasted."""
    ranked = [spec for spec in specs if spec.name not in unranked]
    first_batches = {
        spec.shape[0]: _PROPOSED_BATCH for spec in ranked if isinstance(spec.shape[0], str)
    }
    known = first_batches | dict(named)
    proposals = [_yaml(_profile(spec.name, _proposed(spec, known))) for spec in ranked]
    told = [
        f"input {spec.name} has {'an unknown rank' if spec.name in unranked else _shape(spec)}"
        for spec in specs
    ]
    remedy = (
        f"add to spec, with sizes of yours: shapes: [{', '.join(proposals)}]"
        if proposals
        else REMEDIES[Reason.SHAPE_PROFILE_MISSING]
    )
    return Finding(
        severity="error",
        reason=Reason.SHAPE_PROFILE_MISSING,
        message=f"{'; '.join(told)}: only the first dimension may be left open; {remedy}",
    )


def _proposed(spec: TensorSpec, named: Mapping[str, Sizes]) -> list[Sizes]:
    image = len(spec.shape) == 4
    last = spec.shape[-1] if spec.shape else None
    channels = 3 if isinstance(last, int) and last <= _MOST_CHANNELS else 1  # TensorFlow's layout
    sizes = []
    for index, dimension in enumerate(spec.shape):
        if isinstance(dimension, int):
            sizes.append(Sizes(dimension, dimension, dimension))
        elif isinstance(dimension, str) and dimension in named:
            sizes.append(named[dimension])
        elif index == 0:
            sizes.append(_PROPOSED_BATCH)
        elif image:
            sizes.append(_PROPOSED_CHANNELS if index == channels else _PROPOSED_PIXELS)
        else:
            sizes.append(_PROPOSED_LENGTH)
    return sizes


def _profile(name: str, sizes: Sequence[Sizes]) -> ShapeProfile:
    return ShapeProfile(
        input=name,
        min=tuple(entry.min for entry in sizes),
        opt=tuple(entry.opt for entry in sizes),
        max=tuple(entry.max for entry in sizes),
    )


def _yaml(profile: ShapeProfile) -> str:
    corners = ", ".join(f"{corner}: {list(getattr(profile, corner))}" for corner in CORNERS)
    return f"{{input: {_quoted(profile.input)}, {corners}}}"


def _quoted(name: str) -> str:
    plain = name.replace("_", "").replace(".", "").isalnum() and not name[0].isdigit()
    return name if plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _invalid(profile: ShapeProfile, cause: str) -> Finding:
    return Finding(
        severity="error",
        reason=Reason.SHAPE_PROFILE_INVALID,
        message=f"spec.shapes, input {profile.input}: {cause}; {REMEDIES[Reason.SHAPE_PROFILE_INVALID]}",
    )


def _shape(spec: TensorSpec) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in spec.shape) + "]"


def _dimensions(spec: TensorSpec) -> str:
    count = len(spec.shape)
    return f"{count} dimension{'' if count == 1 else 's'} each, for the model has {_shape(spec)}"
