"""`--fix`: writes the model that the pipeline would serve, and a log of its changes.

An existing file is replaced only if its log proves that it is an unchanged earlier output: any other
file might be irreplaceable. A model that needs no change is copied, so that a script always finds a
current file.

External data is in a separate folder, with file names derived from the content. So the model, which
is renamed last, always refers to complete files, and no file of the source is modified.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from enginewright_contract.manifest import (
    MANIFEST_NAME,
    ArtifactFile,
    Change,
    Manifest,
    OutputParity,
)
from pydantic import Field, ValidationError

from enginewright_cli import formatting
from enginewright_cli.preflight.options import OptionError
from enginewright_cli.preflight.outfile import check_place, replace
from enginewright_cli.preflight.result import Described, Parity, Result

_SUFFIX: Final = ".onnx"
_LEVELS: Final = {  # below ALL -> of ONNX Runtime's SessionOptions
    "EXTENDED": "ORT_ENABLE_EXTENDED",
    "BASIC": "ORT_ENABLE_BASIC",
    "DISABLE": "ORT_DISABLE_ALL",
}
_DIGEST_LENGTH: Final = 16  # characters of a digest in the file names of external data
_CHUNK: Final = 1 << 20  # bytes


class FixError(Exception):
    """The model could not be written; existing files are unchanged."""


class ChangeLog(Described):
    """The log of an output, OUT.changes.json: its files, origin and changes."""

    schema_: Literal["enginewright.dev/preflight-fix/v1"] = Field(
        default="enginewright.dev/preflight-fix/v1", alias="schema"
    )
    """Name and version of this format."""
    source: str
    """The model that was given."""
    source_digest: str
    """sha256 over its .onnx file and its external data."""
    target: str
    """The target that the model was prepared for."""
    backend: str
    """Backend that runs it there."""
    precision: str | None = None
    """Precision that it was converted to; absent: its own."""
    opset: int
    """Opset of the written model."""
    ir_version: int
    """IR version of the written model."""
    changes: tuple[Change, ...] = ()
    """Changes of the source; empty: none, the files are copies."""
    graph_optimization: str | None = None
    """Highest level of ONNX Runtime's graph optimization at which it loads with these outputs; absent: ALL."""
    parity: Parity
    """How close the outputs of the written model are to the source's."""
    prepared_key: str
    """Key of the same model in the pipeline's store."""
    versions: dict[str, str]
    """Versions of the software that created it."""
    files: tuple[ArtifactFile, ...]
    """Written files, the model first; paths are relative to its folder."""


def check(out: Path, source: str) -> None:
    """Verify, before a long run, that the model may be written there. Raises OptionError."""
    if out.suffix != _SUFFIX:
        raise OptionError(f"--fix {out}: give a file that ends in {_SUFFIX}")
    check_place("--fix", out, (source,))
    log, folder = _log(out), _folder(out)
    earlier = _earlier(out)
    if earlier is None:
        for path in (out, log, folder):
            if path.exists():
                raise OptionError(
                    f"--fix {out}: {path} exists and is not an unchanged output of --fix; delete it or"
                    " give another file"
                )


def write(out: Path, result: Result, artifact: Callable[[str], Path]) -> ChangeLog | None:
    """Write the model for the first target that would serve it, if any; `artifact` finds it by key. Raises FixError."""
    model = result.model
    passing = (
        (name, target)
        for name, target in result.targets.items()
        if target.verdict in ("pass", "warn")
    )
    name, target = next(passing, (None, None))
    if model is None or name is None or target is None or target.prepared_key is None:
        return None
    prepared = artifact(target.prepared_key)
    manifest = Manifest.model_validate_json((prepared / MANIFEST_NAME).read_bytes())
    log = ChangeLog(
        source=result.source,
        source_digest=model.digest,
        target=name,
        backend=target.backend,
        precision=manifest.precision,
        opset=manifest.opset,
        ir_version=manifest.ir_version,
        changes=manifest.changes,
        graph_optimization=_find_lower_level(manifest),
        parity=target.parity or Parity(verdict="unknown"),
        prepared_key=target.prepared_key,
        versions=manifest.versions,
        files=(),
    )
    try:
        return _write(out, prepared, manifest, log)
    except OSError as error:
        raise FixError(
            f"--fix {out}: {error.strerror or error}; nothing was written, existing files are"
            " unchanged"
        ) from error


def summary(log: ChangeLog, out: Path) -> list[str]:
    """Return what was written, changed and compared, one line each."""
    size = formatting.size(sum(file.size_bytes for file in log.files))
    lines = [f"wrote {out} ({size}), the model as target {log.target} would serve it"]
    lines += [f"changed: {change.message}" for change in log.changes]
    if not log.changes:
        lines.append("no changes were necessary: it is a copy of the source")
    if level := log.graph_optimization:
        lines.append(
            f"ONNX Runtime must load it with graph_optimization_level {_LEVELS[level]}: at higher"
            " ones it refuses it, or its outputs differ"
        )
    lines += [f"output {output.name} {_difference(output)}" for output in log.parity.outputs]
    return lines + [f"not judged by the samples: {part}" for part in log.parity.list_unjudged()]


def _find_lower_level(manifest: Manifest) -> str | None:
    level = manifest.graph_optimization
    return level if level in _LEVELS else None


def _difference(parity: OutputParity) -> str:
    if parity.runs is not None:
        return f"has the same distribution as the {parity.compared_with}'s"
    if parity.max_abs_error is None:
        return f"was compared with the {parity.compared_with}'s"
    if not parity.max_abs_error:
        return f"equals the {parity.compared_with}'s"
    return f"differs from the {parity.compared_with}'s by {parity.max_abs_error:.3g} at most"


def _write(out: Path, prepared: Path, manifest: Manifest, log: ChangeLog) -> ChangeLog:
    earlier = _earlier(out)
    inside = PurePosixPath(manifest.model).parent
    data = {
        str(PurePosixPath(file.path).relative_to(inside)): file
        for file in manifest.files
        if PurePosixPath(file.path).is_relative_to(inside) and file.path != manifest.model
    }
    folder = _folder(out)
    names = {
        path: f"{folder.name}/{file.sha256[:_DIGEST_LENGTH]}{PurePosixPath(path).suffix}"
        for path, file in data.items()
    }
    with ExitStack() as undo:
        if data and not folder.exists():
            folder.mkdir()
            undo.callback(folder.rmdir)
        for path, file in data.items():
            _copy_data(prepared / file.path, out.parent / names[path], file.sha256, undo)
        # the log is renamed first, after the model is completely on disk
        with replace(out) as model_stream, replace(_log(out)) as log_stream:
            source = prepared / manifest.model
            if data:
                model_stream.write(_with_external_names(source, names))
            else:
                with source.open("rb") as stream:
                    shutil.copyfileobj(stream, model_stream, _CHUNK)
            model_stream.flush()
            os.fsync(model_stream.fileno())
            written = [(out.name, Path(model_stream.name))]
            written += [(name, out.parent / name) for name in dict.fromkeys(names.values())]
            files = tuple(
                ArtifactFile(path=name, sha256=_digest(path), size_bytes=path.stat().st_size)
                for name, path in written
            )
            done = log.model_copy(update={"files": files})
            text = done.model_dump_json(exclude_none=True, indent=2)
            log_stream.write(text.encode() + b"\n")
        undo.pop_all()
    _remove_stale(out, earlier, done)
    return done


def _copy_data(source: Path, target: Path, sha256: str, undo: ExitStack) -> None:
    if target.exists() and _digest(target) == sha256:
        return
    with replace(target) as stream, source.open("rb") as data:
        shutil.copyfileobj(data, stream, _CHUNK)
    undo.callback(target.unlink)


def _with_external_names(model: Path, names: dict[str, str]) -> bytes:
    from enginewright_runtime.graph.raw import graphs  # noqa: PLC0415 - loaded lazily

    proto = graphs.parse(model)
    for tensor in graphs.walk_tensors(proto):
        if graphs.external_entries(tensor) is None:
            continue
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[str(PurePosixPath(entry.value))]
    return bytes(proto.SerializeToString())


def _remove_stale(out: Path, earlier: ChangeLog | None, now: ChangeLog) -> None:
    kept = {file.path for file in now.files}
    folder = _folder(out)
    for file in earlier.files if earlier else ():
        path = out.parent / file.path
        if file.path not in kept and path.parent == folder:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _earlier(out: Path) -> ChangeLog | None:
    """Return the log of an earlier output, or None if that is missing or was changed."""
    try:
        log = ChangeLog.model_validate_json(_log(out).read_bytes())
        unchanged = log.files[0].sha256 == _digest(out)
    except (OSError, ValidationError, IndexError):
        return None
    return log if unchanged else None


def _log(out: Path) -> Path:
    return out.with_suffix(".changes.json")


def _folder(out: Path) -> Path:
    return out.with_suffix(".data")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
