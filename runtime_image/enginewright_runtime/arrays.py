"""Arrays by sample and tensor, as stages hand them on: .npz files of arrays SAMPLE/TENSOR, never pickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]  # by tensor


def read_arrays(path: Path) -> dict[str, Arrays]:
    """Return the arrays by sample."""
    groups: dict[str, Arrays] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            sample, _, name = key.partition("/")
            groups.setdefault(sample, {})[name] = file[key]
    return groups


def write_arrays(path: Path, groups: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Write arrays by sample; strings become fixed-width ones, which need no pickle."""
    arrays: dict[str, Any] = {
        f"{sample}/{name}": array.astype(np.str_) if array.dtype == object else array
        for sample, members in groups.items()
        for name, array in members.items()
    }
    np.savez(path, **arrays)
