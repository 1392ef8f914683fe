"""Arrays by sample and tensor, exchanged by stages as .npz files of arrays SAMPLE/TENSOR, unpickled."""

import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]  # by tensor

_NAME_LENGTH_AT: Final = 26  # in a local file header of ZIP; the length of its extra field follows
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path) -> dict[str, Arrays]:
    """Return the arrays by sample."""
    groups: dict[str, Arrays] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            sample, _, name = key.partition("/")
            groups.setdefault(sample, {})[name] = file[key]
    return groups


def map_arrays(path: Path) -> Arrays:
    """Return the arrays by SAMPLE/TENSOR, memory-mapped where possible; raises OSError, ValueError.

    Mapped arrays use only reclaimable page cache; compressed arrays and strings are read into memory.
    """
    arrays: Arrays = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                array = _map_member(path, file, member)
                if array is None:
                    with archive.open(member) as stream:
                        array = np.lib.format.read_array(stream, allow_pickle=False)
                arrays[member.filename.removesuffix(".npy")] = array
    except (zipfile.BadZipFile, struct.error) as error:
        raise ValueError(f"{path.name} is not an .npz file: {error}") from error
    return arrays


def _map_member(path: Path, file: BinaryIO, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    file.seek(member.header_offset + _NAME_LENGTH_AT)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(name + extra, os.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read = _HEADERS.get(version)
    if read is None:
        return None
    shape, fortran, dtype = read(file)
    if fortran or dtype.hasobject or dtype.kind == "U" or 0 in shape:
        return None
    return np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape)


def write_arrays(path: Path, groups: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Write arrays by sample; strings become fixed-width, which needs no pickle."""
    arrays: dict[str, Any] = {
        f"{sample}/{name}": array.astype(np.str_) if array.dtype == object else array
        for sample, members in groups.items()
        for name, array in members.items()
    }
    np.savez(path, **arrays)
