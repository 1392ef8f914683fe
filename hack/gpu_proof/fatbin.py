"""Reduces a CUDA library to what one compute capability loads, without changing its size.

A library holds machine code for many architectures, compressed, so that it cannot be compressed again.
What a device does not load is overwritten with zeros: headers, sizes and addresses stay, so that the
library loads as before, and the zeros cost nothing in a compressed piece. PTX stays where a container has
no machine code that the device runs: the driver compiles it.

Layout, as NVIDIA's cuobjdump reads it: containers that begin with a magic number, a version and the sizes
of header and contents; in each, entries with a kind (1: PTX, 2: machine code), the sizes of header and
payload, and at byte 28 the architecture.
"""

import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x50\xed\x55\xba"
_CONTAINER: Final = struct.Struct("<4sHHQ")
_ENTRY: Final = struct.Struct("<HHIQ12xI")
_MACHINE_CODE: Final = 2


def reduce(source: Path, target: Path, compute_capability: str) -> int:
    """Write `source` to `target` without what the device does not load; return the bytes overwritten.

    Args:
        source: the library.
        target: the file to write.
        compute_capability: of the device, such as "9.0": machine code runs on devices of the same major
            version and the same or a higher minor version.
    """
    major, _, minor = compute_capability.partition(".")
    wanted = int(major) * 10 + int(minor)
    content = bytearray(source.read_bytes())
    zeroed, at = 0, content.find(_MAGIC)
    while at >= 0:
        _, version, header, size = _CONTAINER.unpack_from(content, at)
        end = at + header + size
        if (version, header) != (1, _CONTAINER.size) or end > len(content):
            at = content.find(_MAGIC, at + len(_MAGIC))  # the number by chance
            continue
        zeroed += _reduce_container(content, at + header, end, wanted)
        at = content.find(_MAGIC, end)
    target.write_bytes(content)
    return zeroed


def _reduce_container(content: bytearray, begin: int, end: int, wanted: int) -> int:
    """Overwrite what the device does not load of one container; return the bytes overwritten."""
    entries = []
    while begin + _ENTRY.size <= end:
        kind, _, ahead, payload, architecture = _ENTRY.unpack_from(content, begin)
        runs = architecture // 10 == wanted // 10 and architecture <= wanted
        entries.append((kind == _MACHINE_CODE, runs, begin + ahead, payload))
        begin += ahead + payload
    has_code = any(is_code and runs for is_code, runs, _, _ in entries)
    zeroed = 0
    for is_code, runs, start, size in entries:
        if not runs if is_code else has_code:
            content[start : start + size] = bytes(size)
            zeroed += size
    return zeroed
