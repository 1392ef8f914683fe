"""Which compute capabilities a library holds CUDA code for, read from its fat binaries.

Layout, as NVIDIA's cuobjdump reads it: containers that begin with a magic number, a version and the
sizes of their header and contents; in each, entries with a kind (1: PTX, which any newer device
compiles; 2: machine code), the sizes of header and payload, and at byte 28 the architecture.
"""

import mmap
import struct
from pathlib import Path
from typing import Final, NamedTuple

_MAGIC: Final = b"\x50\xed\x55\xba"
_CONTAINER: Final = struct.Struct("<4sHHQ")
_ENTRY: Final = struct.Struct("<HHIQ12xI")
_PTX: Final = 1
_MACHINE_CODE: Final = 2


class Code(NamedTuple):
    """Compute capabilities, "8.9", that there is machine code and PTX for."""

    machine: frozenset[str]
    ptx: frozenset[str]


def code_of(library: Path) -> Code:
    """Return the compute capabilities that a library contains code for."""
    found: dict[int, set[str]] = {_PTX: set(), _MACHINE_CODE: set()}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_MAGIC)
        while at >= 0:
            _, version, header, size = _CONTAINER.unpack_from(data, at)
            if (version, header) != (1, _CONTAINER.size):
                at = data.find(_MAGIC, at + len(_MAGIC))  # the number by chance
                continue
            entry, end = at + header, at + header + size
            while entry + _ENTRY.size <= end:
                kind, _, ahead, payload, architecture = _ENTRY.unpack_from(data, entry)
                found[kind].add(f"{architecture // 10}.{architecture % 10}")
                entry += ahead + payload
            at = data.find(_MAGIC, end)
    return Code(frozenset(found[_MACHINE_CODE]), frozenset(found[_PTX]))
