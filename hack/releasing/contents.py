"""Which packages are in an image: those of Python and of Debian, as their tools have installed them."""

import email.parser
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from hack.releasing.archives import path_of

_STATUS: Final = "var/lib/dpkg/status"
_SYSTEM: Final = "usr/lib/os-release"
_METADATA: Final = re.compile(r".+\.dist-info/METADATA")
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"


class Package(NamedTuple):
    """One package, with the distribution that it is of; Debian's names the licence in a file, not as a word."""

    kind: str  # pypi or deb
    name: str
    version: str
    licence: str = ""
    architecture: str = ""
    system: str = ""  # such as debian-12


def read_folder(root: Path) -> list[Package]:
    """Return the packages below a folder, such as a virtual environment."""
    files = (path for path in root.rglob("METADATA") if _METADATA.fullmatch(str(path)))
    return find_packages({str(path.relative_to(root)): path.read_bytes() for path in files})


def read_layout(folder: Path) -> list[Package]:
    """Return the packages of the one image in an OCI layout."""
    (image,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = json.loads((folder / path_of(image["digest"])).read_text())
    files: dict[str, bytes] = {}
    for layer in manifest["layers"]:
        with tarfile.open(folder / path_of(layer["digest"])) as archive:
            apply_layer(files, archive)
    return find_packages(files)


def apply_layer(files: dict[str, bytes], archive: tarfile.TarFile) -> None:
    """Add what a layer says of packages to that of the layers below it; its whiteouts remove from those alone."""
    added: dict[str, bytes] = {}
    for entry in archive:
        path = PurePosixPath(entry.name.removeprefix("./"))
        if path.name.startswith(_WHITEOUT):
            opaque = path.name == _OPAQUE
            gone = path.parent if opaque else path.with_name(path.name.removeprefix(_WHITEOUT))
            for name in [name for name in files if PurePosixPath(name).is_relative_to(gone)]:
                del files[name]
        elif _tells(str(path)) and (reader := archive.extractfile(entry)):
            with closing(reader):
                added[str(path)] = reader.read()
    files |= added


def _tells(path: str) -> bool:
    return path in {_STATUS, _SYSTEM} or _METADATA.fullmatch(path) is not None


def find_packages(files: dict[str, bytes]) -> list[Package]:
    """Return the packages that these files tell of, sorted."""
    python = (read_python(content) for path, content in files.items() if _METADATA.fullmatch(path))
    debian = read_debian(files.get(_STATUS, b"").decode(), files.get(_SYSTEM, b"").decode())
    return sorted({*python, *debian})


def read_python(metadata: bytes) -> Package:
    """Return the package of a METADATA file."""
    fields = email.parser.BytesHeaderParser().parsebytes(metadata)
    named = (fields["License-Expression"] or fields["License"] or "").strip()
    licence = "" if "\n" in named or named == "UNKNOWN" else named  # some put the whole text there
    name = re.sub(r"[-_.]+", "-", str(fields["Name"])).lower()
    return Package("pypi", name, str(fields["Version"]), licence)


def read_debian(status: str, system: str) -> Iterator[Package]:
    """Yield the packages that dpkg's status and the system's os-release name."""
    release = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]+)"?$', system, re.MULTILINE))
    distribution = "-".join(release.get(key, "") for key in ("ID", "VERSION_ID"))
    for block in filter(None, status.split("\n\n")):
        fields = dict(re.findall(r"^([A-Z][\w-]+): (.+)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield Package(
                "deb",
                fields["Package"],
                fields["Version"],
                "",
                fields["Architecture"],
                distribution,
            )
