"""Reads a shared library's ELF-64 headers (System V ABI, chapters 4 and 5) without loading it, which would run its code."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_MAGIC: Final = b"\x7fELF"
_CLASS_64: Final = 2
_LITTLE_ENDIAN: Final = 1
_SHARED_OBJECT: Final = 3
_DYNAMIC_SYMBOLS: Final = 11
_UNDEFINED: Final = 0
_MACHINES: Final = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class NotALibraryError(ValueError):
    """The file is not a valid shared library; the message says why."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


@dataclass(frozen=True)
class SharedLibrary:
    """A library's processor, named as by `platform.machine()`, and its exported functions."""

    machine: str
    exports: frozenset[str]


def read(path: Path) -> SharedLibrary:
    """Read a library's headers; raises NotALibraryError, or OSError if it cannot be read."""
    content = path.read_bytes()
    if not content.startswith(_MAGIC):
        raise NotALibraryError("the file is not an ELF file")
    try:
        return _parse(content)
    except NotALibraryError:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise NotALibraryError("the file is truncated, or its headers are damaged") from error


def _parse(content: bytes) -> SharedLibrary:
    (_, width, order, _, kind, machine, _, _, _, offset, _, _, _, _, size, count, _) = (
        _HEADER.unpack_from(content)
    )
    if width != _CLASS_64 or order != _LITTLE_ENDIAN:
        raise NotALibraryError("the library is not for a 64-bit little-endian processor")
    if kind != _SHARED_OBJECT:
        raise NotALibraryError("the ELF file is not a shared library")
    sections = [
        _Section(*_SECTION.unpack_from(content, offset + size * index)) for index in range(count)
    ]
    tables = [section for section in sections if section.kind == _DYNAMIC_SYMBOLS]
    if not tables:
        raise NotALibraryError("the library has no dynamic symbol table")
    exports: set[str] = set()
    for table in tables:
        exports |= _list_exports(content, table, sections[table.link])
    return SharedLibrary(_MACHINES.get(machine, f"machine {machine}"), frozenset(exports))


def _list_exports(content: bytes, table: _Section, strings: _Section) -> set[str]:
    names = content[strings.offset : strings.offset + strings.size]
    exports = set()
    for offset in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(content, offset)
        if section != _UNDEFINED and name:
            exports.add(names[name : names.index(b"\0", name)].decode())
    return exports
