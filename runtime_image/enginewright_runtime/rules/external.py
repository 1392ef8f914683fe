"""Rules on weights outside the .onnx file (docs/ExternalData.md of onnx)."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from enginewright.contract.report import name_nodes
from onnx import TensorProto

from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.rules import contents
from enginewright_runtime.rules.base import Hit, Subject
from enginewright_runtime.rules.text import quoted, shown

_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class _Place(StrEnum):
    """What lies at a location."""

    OUTSIDE = "outside"
    MISSING = "missing"
    LINK = "link"  # to a file inside the model's folder
    IRREGULAR = "irregular"
    FILE = "file"


@dataclass(frozen=True)
class _Outside:
    """A tensor that lies outside."""

    name: str
    tensor: TensorProto
    entries: dict[str, str]

    @property
    def location(self) -> str:
        return self.entries.get("location", "")


def outside_folder(subject: Subject) -> Hit | None:
    """Find locations that leave the model's folder, by their name or by a link."""
    places = _places(subject)
    found = [
        f"{each.name} ('{shown(each.location)}')"
        for each in _outside(subject)
        if places[each.location] is _Place.OUTSIDE
    ]
    if not found:
        return None
    return Hit(f"external data of {name_nodes(found)} lies outside the model's folder")


def missing_files(subject: Subject) -> Hit | None:
    """Find files that are not there."""
    files = _at(subject, _Place.MISSING)
    if not files:
        return None
    count = sum(each.location in files for each in _outside(subject))
    are = "is" if len(files) == 1 else "are"
    return Hit(
        f"external data file {quoted(files)}, with {counted(count, 'tensor')}, {are} not in the"
        " model's folder"
    )


def irregular_files(subject: Subject) -> Hit | None:
    """Find locations with folders, pipes, sockets or devices."""
    files = _at(subject, _Place.IRREGULAR)
    return Hit(f"external data is no plain file: {quoted(files)}") if files else None


def linked_files(subject: Subject) -> Hit | None:
    """Find links to files inside the folder."""
    files = _at(subject, _Place.LINK)
    if not files:
        return None
    return Hit(f"external data is a symbolic link, which onnx's own tools refuse: {quoted(files)}")


def short_files(subject: Subject) -> Hit | None:
    """Find tensors that end after their file does."""
    places = _places(subject)
    found = []
    for each in _outside(subject):
        end = _end(each)
        if end is None or places[each.location] not in {_Place.FILE, _Place.LINK}:
            continue
        size = (subject.folder / each.location).stat().st_size
        if end > size:
            found.append(f"{each.name} ({shown(each.location)} has {size} bytes of {end})")
    return Hit(f"external data is cut short: {name_nodes(found)}") if found else None


def wrong_stretches(subject: Subject) -> Hit | None:
    """Find offsets and lengths that cannot be, or do not fit the tensor."""
    found = [
        f"{each.name} ({why})"
        for each in _outside(subject)
        if (why := _contradiction(each)) is not None
    ]
    return Hit(f"invalid external data location: {name_nodes(found)}") if found else None


def _outside(subject: Subject) -> Iterator[_Outside]:
    for name, tensor in subject.tensors:
        entries = graphs.external_entries(tensor)
        if entries is not None:
            yield _Outside(name, tensor, entries)


def _places(subject: Subject) -> dict[str, _Place]:
    locations = dict.fromkeys(each.location for each in _outside(subject))
    return {location: _place(subject.folder, location) for location in locations}


def _at(subject: Subject, place: _Place) -> list[str]:
    return [location for location, found in _places(subject).items() if found is place]


def _place(folder: Path, location: str) -> _Place:
    if not graphs.is_inside(location) or "\0" in location:
        return _Place.OUTSIDE
    path = folder / location
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            return _Place.OUTSIDE
        mode = path.stat().st_mode
    except OSError:
        return _Place.MISSING
    if not stat.S_ISREG(mode):
        return _Place.IRREGULAR
    return _Place.LINK if path.is_symlink() else _Place.FILE


def _end(each: _Outside) -> int | None:
    """Return how many bytes the file must have; None where that is not stated rightly."""
    if _contradiction(each) is not None:
        return None
    size = contents.byte_size(each.tensor)
    return None if size is None else int(each.entries.get("offset") or 0) + size


def _contradiction(each: _Outside) -> str | None:
    offset, length = each.entries.get("offset") or "0", each.entries.get("length") or "0"
    for key, entry in (("offset", offset), ("length", length)):
        # what ONNX Runtime reads into a signed number of 64 bits
        if not _NUMBER.fullmatch(entry) or int(entry) >= 1 << 63:
            return f"{key} '{shown(entry)}' is no number of bytes"
    size = contents.byte_size(each.tensor)
    if size is not None and int(length) not in {0, size}:
        return f"length {length}, and its shape needs {size} bytes"
    return None
