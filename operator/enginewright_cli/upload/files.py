"""The files of a model on this machine: the .onnx file and its external data, or all files of a folder."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import render
from enginewright_contract.schemes import BUCKETS, OCI, PVC, scheme_of

from enginewright_cli.reporting import CommandError, Refused, WrongUsage, unreadable

CHUNK: Final = 1 << 20
_CHART: Final = "store.images."  # begins settings of the chart, for pushes of the operator
_ADVICE: Final = {  # instead of what the owner of a pod may do
    Reason.SOURCE_UNREACHABLE: (
        "check the address, that this machine reaches the registry, and that ~/.docker/config.json has an"
        " account that may push there: `docker login`, without a credential helper"
    ),
    Reason.STORE_UNAVAILABLE: "check the address, and that this machine reaches the bucket",
}


@dataclass(frozen=True)
class LocalFile:
    """A file to upload."""

    path: Path
    name: str  # at the destination, relative to it
    size: int
    sha256: str


@dataclass(frozen=True)
class Destination:
    """Where files go: the folder, as an address, and the name of a single file in it, if that is given."""

    folder: str
    name: str


def list_files(source: Path, destination: Destination) -> list[LocalFile]:
    """Return the files of a model, with their digests. Raises CommandError."""
    try:
        named = dict(_names(source, destination.name))
        return [
            LocalFile(path, name, path.stat().st_size, _digest(path))
            for path, name in named.items()
        ]
    except OSError as error:
        raise unreadable(source, error) from None


def _names(source: Path, name: str) -> Iterator[tuple[Path, str]]:
    if source.is_dir():
        files = [path for path in sorted(source.rglob("*")) if path.is_file()]
        if not files:
            raise WrongUsage(f"{source} has no files")
        prefix = f"{name}/" if name else ""
        for path in files:
            yield path, prefix + path.relative_to(source).as_posix()
        return
    source.stat()
    if not source.is_file():
        raise WrongUsage(f"{source} is neither a file nor a folder")
    yield source, name or source.name
    if source.suffix == ".onnx":
        from enginewright_cli.describe.reading import read  # noqa: PLC0415 - heavy

        for file in read(source).external:
            if file.size_bytes is None:
                raise Refused(
                    f"{source}: its external data {file.path} is missing: put it beside the model"
                )
            yield source.parent / file.path, file.path


def _digest(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def parse(address: str) -> Destination:
    """Return the folder and the file's name of an address; one that ends with / names a folder. Raises CommandError."""
    scheme = scheme_of(address)
    if scheme is OCI:
        return Destination(address, "")
    if scheme is not PVC and scheme not in BUCKETS:
        forms = ", ".join(one.form for one in (PVC, *BUCKETS, OCI))
        raise WrongUsage(f"{address}: models are uploaded to {forms}")
    rest = address.removeprefix(scheme.prefix)
    place, _, path = rest.partition("/")
    if not place or any(part in ("", ".", "..") for part in path.strip("/").split("/") if path):
        raise WrongUsage(f"{address}: write {scheme.form}")
    folder, _, name = path.rpartition("/")
    return Destination(f"{scheme.prefix}{place}/{folder}".rstrip("/"), name)


@contextmanager
def failures() -> Iterator[None]:
    """Raise CommandError for what the clients of buckets and registries report."""
    from enginewright_runtime.core.failure import StageFailure  # noqa: PLC0415 - heavy

    try:
        yield
    except StageFailure as failure:
        finding = failure.finding
        own = finding.remedy is not None and _CHART not in finding.remedy
        advice = finding.advice if own else _ADVICE.get(finding.reason, finding.advice)
        raise CommandError(render(finding.cause, advice)) from None
    except OSError as error:
        raise CommandError(str(error)) from None
