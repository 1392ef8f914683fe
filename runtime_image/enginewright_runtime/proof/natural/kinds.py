"""What an input most likely carries, by its name, type and sizes: a guess that a run may refuse. Pure."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from enginewright_contract.manifest import TensorSpec

Shape = tuple[int, ...]


class Kind(StrEnum):
    """What an input carries."""

    IMAGE = "image"
    SOUND = "sound"
    TOKENS = "text"
    RATE = "rate"  # samples per second of a sound
    LOWEST = "lowest"  # frequency that is looked for in a sound
    HIGHEST = "highest"
    MASK = "mask"  # 1 where a text has a token
    SEGMENTS = "segments"  # which of two texts a token belongs to
    POSITIONS = "positions"


LEADING: Final = (Kind.IMAGE, Kind.SOUND, Kind.TOKENS)  # the others only go with these
_FLOATS: Final = frozenset({"float16", "float32", "float64"})
_INTEGERS: Final = frozenset({"int32", "int64"})
_COLORS: Final = frozenset({1, 3})
_LEAST_PIXELS: Final = 24  # of a side
_LEAST_SOUND: Final = 256  # samples, of an input that is named so
_LONG: Final = 8000  # samples: no other axis is that long
_LEAST_VOCABULARY: Final = 1000  # rows of a table of tokens, of an input with another name
_STATE: Final = re.compile(r"past|cache|state|hidden|mems|histor|^(?:[hc]0?|[hc]n)$", re.IGNORECASE)
_SOUND: Final = re.compile(r"audio|wave|speech|sound|pcm|signal", re.IGNORECASE)
_PLAIN: Final = frozenset({"input", "x"})  # of a sound's next samples, beside a state
_RATE: Final = re.compile(r"^(?:sr|sampl\w*_rate)$", re.IGNORECASE)
_LOWEST: Final = re.compile(r"^f_?min$", re.IGNORECASE)
_HIGHEST: Final = re.compile(r"^f_?max$", re.IGNORECASE)
_MASK: Final = re.compile(r"mask", re.IGNORECASE)
_SEGMENTS: Final = re.compile(r"(?:token_)?type_ids|segment", re.IGNORECASE)
_POSITIONS: Final = re.compile(r"position", re.IGNORECASE)
_TOKENS: Final = re.compile(r"(?:^|_)(?:input_?ids|ids|tokens?(?:_ids)?)$", re.IGNORECASE)


def find_kinds(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    vocabularies: Mapping[str, int],
) -> dict[str, Kind]:
    """Return the kinds of the inputs that have one; `vocabularies` are the rows of the tables that they index."""
    beside_state = any(_STATE.search(spec.name) or _RATE.search(spec.name) for spec in inputs)
    kinds: dict[str, Kind] = {}
    for spec in inputs:
        shape = shapes[spec.name]
        if 0 in shape:
            continue
        kind = _find_limit(spec) or _find_integers(spec, shape, vocabularies.get(spec.name, 0))
        if is_mask(spec) and shape:
            kind = Kind.MASK
        elif kind is None and not _STATE.search(spec.name):
            if find_channels(spec, shape) is not None:
                kind = Kind.IMAGE
            elif _is_sound(spec, shape, beside_state=beside_state):
                kind = Kind.SOUND
        if kind is not None:
            kinds[spec.name] = kind
    return kinds if any(kind in LEADING for kind in kinds.values()) else {}


def is_mask(spec: TensorSpec) -> bool:
    """Return whether the input may be a mask, by its name."""
    numeric = spec.dtype == "bool" or spec.dtype in _FLOATS | _INTEGERS
    return numeric and _MASK.search(spec.name) is not None


def find_channels(spec: TensorSpec, shape: Shape) -> int | None:
    """Return the axis of an image's colours, or None if the input is none."""
    if spec.dtype not in _FLOATS | {"uint8"}:
        return None
    if len(shape) == 4:
        candidates = [axis for axis in (1, 3) if shape[axis] in _COLORS]
    elif len(shape) == 3:
        candidates = [axis for axis in (0, 2) if spec.shape and spec.shape[axis] == 3]
    else:
        return None
    return next(
        (axis for axis in candidates if min(find_sides(shape, axis)) >= _LEAST_PIXELS), None
    )


def find_sides(shape: Shape, channels: int) -> tuple[int, int]:
    """Return height and width of an image."""
    sides = [size for axis, size in enumerate(shape) if axis != channels][-2:]
    return sides[0], sides[1]


def _find_limit(spec: TensorSpec) -> Kind | None:
    if spec.dtype not in _FLOATS:
        return None
    if _LOWEST.search(spec.name):
        return Kind.LOWEST
    return Kind.HIGHEST if _HIGHEST.search(spec.name) else None


def _find_integers(spec: TensorSpec, shape: Shape, rows: int) -> Kind | None:
    if spec.dtype not in _INTEGERS:
        return None
    if _RATE.search(spec.name):
        return Kind.RATE
    if not 1 <= len(shape) <= 2:
        return None
    if _SEGMENTS.search(spec.name):
        return Kind.SEGMENTS
    if _POSITIONS.search(spec.name):
        return Kind.POSITIONS
    is_named = rows > 1 and _TOKENS.search(spec.name) is not None
    return Kind.TOKENS if is_named or rows >= _LEAST_VOCABULARY else None


def _is_sound(spec: TensorSpec, shape: Shape, *, beside_state: bool) -> bool:
    if spec.dtype not in _FLOATS or not 1 <= len(shape) <= 3:
        return False
    if len(shape) == 3 and shape[1] not in {1, 2}:
        return False  # a spectrogram, for example
    is_named = _SOUND.search(spec.name) or (beside_state and spec.name.lower() in _PLAIN)
    return shape[-1] >= (_LEAST_SOUND if is_named else _LONG)
