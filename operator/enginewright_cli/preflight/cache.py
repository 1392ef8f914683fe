"""Caches results, so that for an unchanged model only its files are hashed.

The key covers everything that determines a result: the model's bytes, the recipe, the targets, the
promise, the samples and calibration data, and the versions of all that is installed. A failing
cache only costs another check: entries are written atomically, unreadable ones are ignored, and a
folder that is not writable is reported once.
"""

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from enginewright_contract.base import Message, canonical_json
from enginewright_contract.code import code_digest
from enginewright_contract.images import ImageFacts
from enginewright_contract.keys import sha256_text
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.processors import CPUINFO, parse
from enginewright_contract.reasons import ExitCode, Reason, Repeats, exit_code
from pydantic import ValidationError

from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.result import SCHEMA, Result

LIMIT: Final = 64 << 20  # bytes of all entries together
_PRUNED_SHARE: Final = 0.8  # of the limit, to which the cache is pruned
_MAX_FILES: Final = 10_000  # of calibration data
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_PACKAGES: Final = (
    "enginewright",
    "enginewright_cli",
    "enginewright_contract",
    "enginewright_runtime",
    "enginewright_serving",
)

Kind = TypeVar("Kind", bound=Message)


class _ExternalFiles(Message):
    files: tuple[str, ...]  # relative to the model's folder


@dataclass(frozen=True)
class ModelFile:
    """A model of this machine, before it is parsed."""

    file: Path
    sha256: str  # of the .onnx file


class ResultCache:
    """The entries below one folder; `warn` is called at most once."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._warned = False

    def tools(self, installed: str) -> ImageFacts | None:
        """Return the cached facts of an installation."""
        return self._read("tools", installed, ImageFacts)

    def keep_tools(self, installed: str, held: ImageFacts) -> None:
        """Store the facts of an installation."""
        self._write("tools", installed, held)

    def result(self, request: PreflightRequest, held: ImageFacts, installed: str) -> Result | None:
        """Return a cached result, if there is one."""
        seen = find_model(request.source)
        beside = self._read("models", seen.sha256, _ExternalFiles) if seen else None
        if seen is None or beside is None:
            return None
        key = self._key(request, held, installed, seen, beside.files)
        cached = self._read("results", key, Result) if key else None
        if cached is None:
            return None
        return cached.model_copy(update={"source": request.shown, "cached": True})

    def keep(
        self,
        request: PreflightRequest,
        held: ImageFacts,
        installed: str,
        result: Result,
        files: tuple[str, ...],
    ) -> None:
        """Store a result, unless it is transient; `files` are the fetched ones, the .onnx file first."""
        seen = find_model(request.source)
        if seen is None or result.model is None or _is_transient(result):
            return
        key = self._key(request, held, installed, seen, files[1:])
        # the file may have changed since it was checked
        if key is None or result.model.digest != _model_digest(seen, files[1:]):
            return
        self._write("results", key, result)
        self._write("models", seen.sha256, _ExternalFiles(files=files[1:]))
        self._prune()

    def _key(
        self,
        request: PreflightRequest,
        held: ImageFacts,
        installed: str,
        seen: ModelFile,
        beside: tuple[str, ...],
    ) -> str | None:
        if request.recipe.processing is not None:
            return None  # which external data the steps have is known only once they are fetched
        digest = _model_digest(seen, beside)
        given = [
            None if path is None else _content(path)
            for path in (request.samples, request.calibration, request.sent)
        ]
        if digest is None or any(item == "" for item in given):
            return None
        body = {
            "schema": SCHEMA,
            "model": digest,
            "recipe": request.recipe.model_dump(mode="json", exclude={"samples_uri"}),
            "promise": request.promise.model_dump(mode="json"),
            "targets": [
                [target.name, target.backend, target.stands_for, target.runtime_version]
                for target in request.targets
            ],
            "data": given,
            "held": held.model_dump(mode="json"),
            "installed": installed,
        }
        return sha256_text(canonical_json(body))

    def _path(self, kind: str, key: str) -> Path:
        return self._folder / kind / f"{key}.json"

    def _read(self, kind: str, key: str, model: type[Kind]) -> Kind | None:
        path = self._path(kind, key)
        try:
            entry = model.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used is pruned first
        return entry

    def _write(self, kind: str, key: str, entry: Message) -> None:
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                try:
                    file.write(entry.to_json())
                    file.close()
                    Path(file.name).rename(path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"results cannot be cached in {self._folder}: {error.strerror}; set XDG_CACHE_HOME to"
                " a writable folder, or give --no-cache"
            )

    def _prune(self) -> None:
        """Remove the least recently used entries if the limit is exceeded."""
        entries = sorted(_entries(self._folder), key=lambda entry: entry[1])
        total = sum(size for _, _, size in entries)
        if total <= LIMIT:
            return
        for path, _, size in entries:
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
            if total <= LIMIT * _PRUNED_SHARE:
                return


def default_folder() -> Path:
    """Return the folder of this user's entries, by the XDG Base Directory Specification."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "enginewright" / "preflight"


def installation() -> str:
    """Return a digest of all that is installed: versions of packages, and our own code without file times."""
    packages = {
        name
        for folder in sys.path
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.endswith(".dist-info")
    }
    return sha256_text(
        canonical_json(
            {
                "python": sys.version,
                "machine": platform.machine(),
                "processor": parse(_text(Path(CPUINFO)), platform.machine()).features,
                "packages": sorted(packages),
                "code": code_digest(*_code()),
                "libraries": os.environ.get("LD_LIBRARY_PATH", ""),
                "driver": _text(_DRIVER),
            }
        )
    )


def find_model(source: str) -> ModelFile | None:
    """Return the local .onnx file of a source, or None if it is known only after the fetch."""
    if "://" in source:
        return None
    path = Path(source)
    if path.is_dir():
        models = [item for item in path.glob("*.onnx") if not item.name.startswith(".")]
        if len(models) != 1:
            return None
        path = models[0]
    if path.suffix.lower() != ".onnx" or not path.is_file():
        return None
    digest = _file_digest(path)
    return ModelFile(path, digest) if digest else None


def _model_digest(seen: ModelFile, beside: tuple[str, ...]) -> str | None:
    """Return the digest as stage `fetch` computes it, or None if a file is missing."""
    if not beside:
        return seen.sha256
    folder = seen.file.resolve().parent
    digests = [[MODEL_NAME, seen.sha256]]
    for name in sorted(beside):
        digest = _file_digest(folder / name)
        if digest is None:
            return None
        digests.append([name, digest])
    return sha256_text(canonical_json(digests))


def _content(path: Path) -> str:
    """Return a digest of a file, or of all files of a folder; "": it cannot be read."""
    if not path.is_dir():
        return _file_digest(path) or ""
    digests: dict[str, str] = {}
    for item in sorted(path.rglob("*")):
        if not item.is_file():
            continue
        digest = _file_digest(item)
        if digest is None or len(digests) >= _MAX_FILES:
            return ""
        digests[item.relative_to(path).as_posix()] = digest
    return sha256_text(canonical_json(digests))


def _file_digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _is_transient(result: Result) -> bool:
    reasons = {finding.reason for finding in result.findings}
    reasons |= {target.reason for target in result.targets.values() if target.reason}
    return any(
        exit_code(reason) is not ExitCode.PERMANENT or reason.facets.repeats is Repeats.PERHAPS
        for reason in map(Reason, reasons)
    )


def _code() -> Iterator[Path]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        yield from map(Path, (spec and spec.submodule_search_locations) or ())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _entries(folder: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield path, time of last use and size of every entry, half-written ones too."""
    for path in folder.glob("*/*"):
        try:
            status = path.stat()
        except OSError:
            continue  # another process has pruned it
        yield path, status.st_mtime, status.st_size
