"""Reduces a CUDA library to what one compute capability loads, without changing its size.

A library holds machine code for many architectures, compressed, so that it cannot be compressed again.
What a device does not load is overwritten with zeros: headers, sizes and addresses stay, so that the
library loads as before, and the zeros cost nothing in a compressed piece. PTX stays where a container has
no machine code that the device runs: the driver compiles it.

Layout, as NVIDIA's cuobjdump reads it: containers that begin with a magic number, a version and the sizes
of header and contents; in each, entries with a kind (1: PTX, 2: machine code), the sizes of header and
payload, and at byte 28 the architecture.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PTX: Final = 1
MACHINE_CODE: Final = 2
_MAGIC: Final = b"\x50\xed\x55\xba"
_CONTAINER: Final = struct.Struct("<4sHHQ")
_ENTRY: Final = struct.Struct("<HHIQ12xI")


class Entry(NamedTuple):
    """PTX or machine code for one architecture, and where its payload is."""

    kind: int  # PTX or MACHINE_CODE
    architecture: int  # 90: compute capability 9.0
    start: int
    size: int  # bytes


def containers(content: bytearray | mmap.mmap) -> Iterator[list[Entry]]:
    """Yield the entries of each container in a library."""
    at = content.find(_MAGIC)
    while at >= 0:
        _, version, header, size = _CONTAINER.unpack_from(content, at)
        end = at + header + size
        if (version, header) != (1, _CONTAINER.size) or end > len(content):
            at = content.find(_MAGIC, at + len(_MAGIC))  # the number by chance
            continue
        entry, entries = at + header, []
        while entry + _ENTRY.size <= end:
            kind, _, ahead, payload, architecture = _ENTRY.unpack_from(content, entry)
            entries.append(Entry(kind, architecture, entry + ahead, payload))
            entry += ahead + payload
        yield entries
        at = content.find(_MAGIC, end)


def reduce(source: Path, target: Path, compute_capability: str) -> int:
    """Write `source` to `target` without what the device does not load; return the bytes overwritten.

    Args:
        source: the library.
        target: the file to write.
        compute_capability: of the device, such as "9.0": machine code runs on devices of the same major
            version and the same or a higher minor version.
    """
    major, _, minor = compute_capability.partition(".")
    device = int(major) * 10 + int(minor)

    def runs(entry: Entry) -> bool:
        same = entry.architecture // 10 == device // 10 and entry.architecture <= device
        return entry.kind == MACHINE_CODE and same

    content = bytearray(source.read_bytes())
    zeroed = 0
    for entries in containers(content):
        has_code = any(map(runs, entries))
        for entry in entries:
            if not runs(entry) if entry.kind == MACHINE_CODE else has_code:
                content[entry.start : entry.start + entry.size] = bytes(entry.size)
                zeroed += entry.size
    target.write_bytes(content)
    return zeroed
