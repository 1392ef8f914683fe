"""`enginewright.toml`: the models of a repository, with their options.

Options of the command line take precedence, then matching entries of `models`, the last one first,
then `defaults`.
"""

import difflib
import glob
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from enginewright_cli.preflight import options
from enginewright_cli.preflight.targets import parse as target
from enginewright_cli.preflight.targets import read_backend

NAME: Final = "enginewright.toml"
_MAX_MODELS: Final = 10_000


class ConfigError(ValueError):
    """An invalid configuration; the message names the key, the cause and the remedy."""


def _valid(read: Callable[[str], object]) -> AfterValidator:
    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelOptions(_Table):
    """Options of a model. Absent ones are taken from the next source."""

    targets: tuple[Annotated[str, _valid(target)], ...] | None = None
    """Targets, like `--target`: cpu, l4, a100, rtx4090, sm75 to sm121, cpu:avx2, openvino, cuda."""
    backend: Annotated[str, _valid(read_backend)] | None = None
    """Backend on targets that have several, like `--backend`: openvino, cpu, tensorrt-rtx or tensorrt."""
    precision: Annotated[str, _valid(options.precision)] | None = None
    """Precision to convert to, like `--precision`."""
    shapes: tuple[Annotated[str, _valid(options.shape)], ...] | None = None
    """Shapes of dynamic inputs, each like `--shapes`: INPUT=MIN:OPT:MAX or INPUT=MIN:OPT:MAX@LOW..HIGH."""
    samples: str | None = None
    """An .npz file, like spec.parity.samples; relative to the configuration's folder."""
    calibration: str | None = None
    """Calibration data, like spec.quantization.calibration; relative to the configuration's folder."""
    rest: Annotated[str, _valid(options.rest)] | None = None
    """Precision of what INT8 and FP8 do not quantize, like `--rest`: FP32 or FP16."""
    before: tuple[str, ...] | None = None
    """Steps before the model, like spec.processing.before; relative to the configuration's folder, or URIs."""
    after: tuple[str, ...] | None = None
    """Steps after the model, likewise."""
    extensions: tuple[Annotated[str, _valid(options.extension)], ...] | None = None
    """Operators that model and steps need, like `--extension`: ONNXRuntimeExtensions."""
    request: str | None = None
    """A request to answer, like `--request`; relative to the configuration's folder."""
    target_opset: int | None = None
    """Opset to convert to, like `--target-opset`."""
    budget: Annotated[str, _valid(options.promise)] | None = None
    """Allowed fallback to other providers, like `--budget`: allow, or compute=2%,nodes=5%."""
    runtime_version: str | None = None
    """ONNX Runtime that will serve, like `--runtime-version`."""

    def over(self, other: "ModelOptions") -> "ModelOptions":
        """Return these options, with absent ones taken from `other`."""
        given = {name: getattr(self, name) for name in ModelOptions.model_fields}
        defaults = {name: getattr(other, name) for name in ModelOptions.model_fields}
        return ModelOptions.model_construct(
            **{name: defaults[name] if value is None else value for name, value in given.items()}
        )


class ModelEntry(ModelOptions):
    """One or several models, with their options."""

    path: str
    """A file, a glob such as models/**/*.onnx, relative to the configuration's folder, or a URI."""


class Document(_Table):
    """The content of the file."""

    defaults: ModelOptions = ModelOptions()
    """Options of every model."""
    models: tuple[ModelEntry, ...] = ()
    """The models of a run without MODEL arguments."""


@dataclass(frozen=True)
class Configuration:
    """A configuration file and its content."""

    file: Path
    document: Document

    @property
    def folder(self) -> Path:
        """Return the folder that paths are relative to."""
        return self.file.parent

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file. Raises ConfigError."""
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from None
        try:
            return cls(file.resolve(), Document.model_validate(document))
        except ValidationError as error:
            problems = "; ".join(_problem(item) for item in error.errors(include_url=False))
            raise ConfigError(f"{file}: {problems}") from None

    def options_of(self, source: str) -> ModelOptions:
        """Return the options of one model, given as a URI or a path relative to the current folder."""
        key = _key(source, Path())
        entries = [model for model in self.document.models if key in self._match(model)]
        return self._merge(entries)

    def models(self) -> dict[str, ModelOptions]:
        """Return all models with their options; paths are relative to the current folder. Raises ConfigError."""
        if not self.document.models:
            raise ConfigError(
                f"{self.file} lists no models; add a table [[models]] with path ="
                ' "models/**/*.onnx", or give a MODEL'
            )
        entries: dict[str, list[ModelEntry]] = {}
        for number, entry in enumerate(self.document.models):
            matched = self._match(entry)
            if not matched:
                raise ConfigError(
                    f"{self.file}: models[{number}].path: {entry.path!r} matches no file below"
                    f" {self.folder}"
                )
            for key in matched:
                entries.setdefault(key, []).append(entry)
        if len(entries) > _MAX_MODELS:
            raise ConfigError(
                f"{self.file} matches {len(entries)} models, more than {_MAX_MODELS}; narrow the"
                " globs, or split the file and select one with --config"
            )
        return {
            key if "://" in key else os.path.relpath(key): self._merge(matching)
            for key, matching in entries.items()
        }

    def _match(self, entry: ModelEntry) -> list[str]:
        """Return the keys of the models of an entry: sorted absolute paths, or the URI."""
        if "://" in entry.path:
            return [entry.path]
        if (self.folder / entry.path).exists():  # a name may contain glob characters
            return [_key(entry.path, self.folder)]
        paths = glob.glob(entry.path, root_dir=self.folder, recursive=True)
        return sorted(_key(path, self.folder) for path in paths if (self.folder / path).is_file())

    def _merge(self, entries: list[ModelEntry]) -> ModelOptions:
        merged = ModelOptions()
        for entry in reversed(entries):
            merged = merged.over(entry)
        merged = merged.over(self.document.defaults)
        paths = {
            name: str(self.folder / path)
            for name in ("samples", "calibration", "request")
            if (path := getattr(merged, name)) is not None
        }
        steps = {
            name: tuple(item if "://" in item else str(self.folder / item) for item in given)
            for name in ("before", "after")
            if (given := getattr(merged, name)) is not None
        }
        return merged.model_copy(update=paths | steps)


def find(start: Path) -> Path | None:
    """Return the configuration of a folder, or of the nearest folder above it."""
    folders = (start.resolve(), *start.resolve().parents)
    return next((file for folder in folders if (file := folder / NAME).is_file()), None)


def _key(source: str, folder: Path) -> str:
    return source if "://" in source else os.path.abspath(folder / source)


def _problem(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, which its plugin hides
    where = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"]
    ).lstrip(".")
    if error["type"] == "extra_forbidden":
        return _describe_unknown(where, error["loc"])
    if error["type"] == "missing":
        return f'{where} is missing; write path = "models/*.onnx"'
    if error["type"] == "tuple_type":
        table = where == "models"
        remedy = "write it as [[models]]" if table else 'write a list, such as ["cpu", "sm89"]'
        return f"{where} must be a list; {remedy}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _describe_unknown(where: str, steps: tuple[int | str, ...]) -> str:
    tables: dict[str, type[BaseModel]] = {"defaults": ModelOptions, "models": ModelEntry}
    table = tables.get(str(steps[0]), Document) if len(steps) > 1 else Document
    keys = list(table.model_fields)
    name = str(steps[-1])
    near = difflib.get_close_matches(name.replace("-", "_"), keys, n=1, cutoff=0.6)
    if near:
        return f"{where} is not a known key; did you mean {near[0]}?"
    return f"{where} is not a known key; known keys: {', '.join(keys)}"
