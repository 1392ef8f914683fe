"""What a dynamic dimension most likely counts: a guess that orders and limits the sizes to try. Pure."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from enginewright_contract.manifest import TensorSpec


class Role(StrEnum):
    """What a dimension most likely counts."""

    BATCH = "batch"
    CHANNELS = "channels"
    PIXELS = "pixels"
    PAST = "past"
    LENGTH = "length"


SIZES: Final[Mapping[Role, tuple[int, ...]]] = {
    Role.BATCH: (1, 2, 4, 8, 16, 32, 3),
    Role.CHANNELS: (3, 1, 4, 2, 64),
    Role.PIXELS: (320, 224, 32, 48, 64, 128, 256, 640, 512, 28, 96, 112, 160, 192, 299, 384, 416, 448,
                  518, 1024),
    Role.PAST: (16, 0, 1, 64, 128),
    Role.LENGTH: (64, 128, 16, 512, 256, 1024, 1, 2048, 4096, 8000, 16000, 32, 2, 4, 8, 80, 100, 160,
                  512, 576, 1536, 32000, 48000, 0),
}  # fmt: skip
LEAST_PIXELS: Final = 32  # many models run on smaller images, but none is meant for them
_PAST: Final = re.compile(r"past|cache|prev|mems|histor", re.IGNORECASE)
_BATCH: Final = re.compile(r"batch", re.IGNORECASE)
_MAX_CHANNELS: Final = 4
_IMAGES: Final = frozenset({4, 5})  # ranks of images, and of videos
_VIDEO: Final = 5


def role_of(name: str, spec: TensorSpec, axis: int, *, alone: bool) -> Role:
    """Return what the dimension `name` most likely counts; `alone` if the model has no other input."""
    rank = len(spec.shape)
    if _BATCH.search(name) and "+" not in name:
        return Role.BATCH
    if axis == 0:
        return Role.LENGTH if rank == 1 and alone else Role.BATCH
    if _is_state(spec, axis):
        return Role.BATCH
    if _PAST.search(name) or _PAST.search(spec.name):
        return Role.PAST
    if rank in _IMAGES and spec.dtype not in {"int32", "int64"}:
        return _of_image(spec, axis)
    unbatched = rank == 3 and spec.shape[0] == 3 and not isinstance(spec.shape[-1], int)
    return Role.PIXELS if unbatched else Role.LENGTH


def _is_state(spec: TensorSpec, axis: int) -> bool:
    """Tell whether the input may be a recurrent layer's state: [directions, batch, features]."""
    shape = spec.shape
    return len(shape) == 3 and axis == 1 and isinstance(shape[0], int) and isinstance(shape[2], int)


def _of_image(spec: TensorSpec, axis: int) -> Role:
    shape, rank = spec.shape, len(spec.shape)
    last = shape[-1]
    channels_last = isinstance(last, int) and last <= _MAX_CHANNELS
    if axis == (rank - 1 if channels_last else 1):
        return Role.CHANNELS
    if rank == _VIDEO and axis == (1 if channels_last else 2):
        return Role.LENGTH
    # [batch, heads, length, features]: images are dynamic in both directions
    lone = sum(not isinstance(item, int) for item in shape[1:]) == 1 and isinstance(last, int)
    return Role.LENGTH if lone and not channels_last and shape[1] not in {1, 3} else Role.PIXELS
