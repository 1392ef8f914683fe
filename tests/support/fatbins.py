"""Which compute capabilities a library holds CUDA code for, read from its fat binaries."""

import mmap
from pathlib import Path
from typing import NamedTuple

from hack.gpu_proof.fatbin import MACHINE_CODE, PTX, containers


class Code(NamedTuple):
    """Compute capabilities, "8.9", that there is machine code and PTX for."""

    machine: frozenset[str]
    ptx: frozenset[str]


def code_of(library: Path) -> Code:
    capabilities: dict[int, set[str]] = {PTX: set(), MACHINE_CODE: set()}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for entries in containers(data):
            for entry in entries:
                capabilities[entry.kind].add(
                    f"{entry.architecture // 10}.{entry.architecture % 10}"
                )
    return Code(frozenset(capabilities[MACHINE_CODE]), frozenset(capabilities[PTX]))
