"""The ranges in which models take the colours of a picture. Pure."""

from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# of the pictures of ImageNet, red, green and blue: torchvision and timm, "mean" and "std" of the weights' transforms
_MEAN: Final = (0.485, 0.456, 0.406)
_DEVIATION: Final = (0.229, 0.224, 0.225)


class ColorRange(StrEnum):
    """Ranges of an input, the least values first."""

    UNIT = "0 to 1"
    SIGNED = "-1 to 1"
    IMAGENET = "mean 0 and standard deviation 1 over ImageNet"
    BYTES = "0 to 255"


def scale(image: Array, colors: ColorRange, channels: int) -> Array:
    """Return an image from 0 to 1 in another range, of the same type; `channels` is the axis of its colours."""
    if colors is ColorRange.UNIT:
        return image
    wide: Array = image.astype(np.float32)
    if colors is ColorRange.SIGNED:
        wide = wide * 2 - 1
    elif colors is ColorRange.BYTES:
        wide = np.round(wide * 255)
    else:
        wide = (wide - _along(_MEAN, image, channels)) / _along(_DEVIATION, image, channels)
    return wide.astype(image.dtype)


def _along(values: tuple[float, ...], image: Array, channels: int) -> Array:
    count = image.shape[channels]
    chosen = values if count == len(values) else (sum(values) / len(values),) * count
    sizes = [1] * image.ndim
    sizes[channels] = count
    return np.asarray(chosen, np.float32).reshape(sizes)
