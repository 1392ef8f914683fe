"""Rules on weights outside the .onnx file (docs/ExternalData.md of onnx)."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from onnx import TensorProto

from enginewright_runtime.core.logs import format_count
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.rules import contents
from enginewright_runtime.rules.base import Hit, Subject, hit_of
from enginewright_runtime.rules.text import join_quoted, quote, show

_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class _LocationKind(StrEnum):
    OUTSIDE = "outside"
    MISSING = "missing"
    LINK = "link"  # to a file inside the model's folder
    IRREGULAR = "irregular"
    FILE = "file"


@dataclass(frozen=True)
class _ExternalTensor:
    name: str
    tensor: TensorProto
    entries: dict[str, str]

    @property
    def location(self) -> str:
        return self.entries.get("location", "")


def outside_folder(subject: Subject) -> Hit | None:
    """Find locations outside the model's folder, by path or through a link."""
    kinds = _kinds(subject)
    names = [
        f"{external_tensor.name} ('{show(external_tensor.location)}')"
        for external_tensor in _external_tensors(subject)
        if kinds[external_tensor.location] is _LocationKind.OUTSIDE
    ]
    return hit_of(names, "external data is outside the model's folder")


def missing_files(subject: Subject) -> Hit | None:
    """Find files that do not exist."""
    files = _locations(subject, _LocationKind.MISSING)
    if not files:
        return None
    count = sum(external_tensor.location in files for external_tensor in _external_tensors(subject))
    are = "is" if len(files) == 1 else "are"
    return Hit(
        f"external data file {join_quoted(files)}, with {format_count(count, 'tensor')}, {are} not in the"
        " model's folder"
    )


def irregular_files(subject: Subject) -> Hit | None:
    """Find locations that are folders, pipes, sockets or devices."""
    files = quote(_locations(subject, _LocationKind.IRREGULAR))
    return hit_of(files, "external data is not a regular file")


def find_linked_files(subject: Subject) -> Hit | None:
    """Find links to files inside the folder."""
    files = quote(_locations(subject, _LocationKind.LINK))
    return hit_of(files, "external data is a symbolic link, which onnx's own tools refuse")


def short_files(subject: Subject) -> Hit | None:
    """Find tensors that end beyond the end of their file."""
    kinds = _kinds(subject)
    names = []
    for external_tensor in _external_tensors(subject):
        end = _end(external_tensor)
        if end is None or kinds[external_tensor.location] not in {
            _LocationKind.FILE,
            _LocationKind.LINK,
        }:
            continue
        size = (subject.folder / external_tensor.location).stat().st_size
        if end > size:
            names.append(
                f"{external_tensor.name} ({show(external_tensor.location)} has {size} bytes of {end})"
            )
    return hit_of(names, "external data is truncated")


def invalid_ranges(subject: Subject) -> Hit | None:
    """Find offsets and lengths that are invalid, or do not match the tensor."""
    names = [
        f"{external_tensor.name} ({why})"
        for external_tensor in _external_tensors(subject)
        if (why := _contradiction(external_tensor)) is not None
    ]
    return hit_of(names, "invalid external data location")


def _external_tensors(subject: Subject) -> Iterator[_ExternalTensor]:
    for name, tensor in subject.tensors:
        entries = graphs.external_entries(tensor)
        if entries is not None:
            yield _ExternalTensor(name, tensor, entries)


def _kinds(subject: Subject) -> dict[str, _LocationKind]:
    locations = dict.fromkeys(
        external_tensor.location for external_tensor in _external_tensors(subject)
    )
    return {location: _kind(subject.folder, location) for location in locations}


def _locations(subject: Subject, kind: _LocationKind) -> list[str]:
    return [
        location for location, location_kind in _kinds(subject).items() if location_kind is kind
    ]


def _kind(folder: Path, location: str) -> _LocationKind:
    if not graphs.is_inside(location) or "\0" in location:
        return _LocationKind.OUTSIDE
    path = folder / location
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            return _LocationKind.OUTSIDE
        mode = path.stat().st_mode
    except OSError:
        return _LocationKind.MISSING
    if not stat.S_ISREG(mode):
        return _LocationKind.IRREGULAR
    return _LocationKind.LINK if path.is_symlink() else _LocationKind.FILE


def _end(tensor: _ExternalTensor) -> int | None:
    if _contradiction(tensor) is not None:
        return None
    size = contents.byte_size(tensor.tensor)
    return None if size is None else int(tensor.entries.get("offset") or 0) + size


def _contradiction(tensor: _ExternalTensor) -> str | None:
    offset, length = tensor.entries.get("offset") or "0", tensor.entries.get("length") or "0"
    for key, entry in (("offset", offset), ("length", length)):
        # ONNX Runtime reads both as signed 64-bit integers
        if not _NUMBER.fullmatch(entry) or int(entry) >= 1 << 63:
            return f"{key} '{show(entry)}' is not a number of bytes"
    size = contents.byte_size(tensor.tensor)
    if size is not None and int(length) not in {0, size}:
        return f"length {length}, but its shape needs {size} bytes"
    return None
