"""`enginewright.toml`: what a repository's models are looked at for, written down once.

Options come from three places. What is typed wins, then the entries of `models` that match, the
last one first, then `defaults`.
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

NAME: Final = "enginewright.toml"
_MOST_MODELS: Final = 10_000


class ConfigError(ValueError):
    """A configuration that cannot be used; says which key, why and what to write."""


def _valid(read: Callable[[str], object]) -> AfterValidator:
    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelOptions(_Table):
    """How a model is looked at. What is absent is left to what is asked next."""

    targets: tuple[Annotated[str, _valid(target)], ...] | None = None
    """Where it is to run, as `--target`: sm86 to sm121, cpu, openvino, cuda, cpu:avx2."""
    precision: Annotated[str, _valid(options.precision)] | None = None
    """Precision that it is brought to, as `--precision`."""
    shapes: tuple[Annotated[str, _valid(options.shape)], ...] | None = None
    """Sizes of its dynamic inputs, each as `--shapes`: INPUT=MIN:OPT:MAX."""
    samples: str | None = None
    """An .npz file as for spec.parity.samples; relative to the configuration's folder."""
    calibration: str | None = None
    """Data as for spec.quantization.calibration; relative to the configuration's folder."""
    target_opset: int | None = None
    """Opset to convert to, as `--target-opset`."""
    budget: Annotated[str, _valid(options.promise)] | None = None
    """What may run elsewhere, as `--budget`: allow, or compute=2%,nodes=5%."""
    runtime_version: str | None = None
    """ONNX Runtime that is to serve, as `--runtime-version`."""

    def over(self, other: "ModelOptions") -> "ModelOptions":
        """Return these options, and the other ones where these are absent."""
        given = {name: getattr(self, name) for name in ModelOptions.model_fields}
        known = {name: getattr(other, name) for name in ModelOptions.model_fields}
        return ModelOptions.model_construct(
            **{name: known[name] if value is None else value for name, value in given.items()}
        )


class ModelEntry(ModelOptions):
    """Models, and what is particular about them."""

    path: str
    """A file, a glob such as models/**/*.onnx, relative to the configuration's folder, or a URI."""


class Document(_Table):
    """The whole file."""

    defaults: ModelOptions = ModelOptions()
    """Options of every model."""
    models: tuple[ModelEntry, ...] = ()
    """The models of a run that names none."""


@dataclass(frozen=True)
class Configuration:
    """A file that was read, and the folder that it speaks of."""

    file: Path
    document: Document

    @property
    def folder(self) -> Path:
        """Return the folder that paths start from."""
        return self.file.parent

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or says something that nobody understands.
        """
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from None
        try:
            return cls(file.resolve(), Document.model_validate(document))
        except ValidationError as error:
            problems = "; ".join(_problem(each) for each in error.errors(include_url=False))
            raise ConfigError(f"{file}: {problems}") from None

    def options_of(self, source: str) -> ModelOptions:
        """Return the options of one model, named as a path seen from here or as a URI."""
        key = _key(source, Path())
        entries = [each for each in self.document.models if key in self._matched(each)]
        return self._merged(entries)

    def models(self) -> dict[str, ModelOptions]:
        """Return all models, as they are seen from the current folder, with their options.

        Raises:
            ConfigError: an entry matches nothing, or there is none.
        """
        if not self.document.models:
            raise ConfigError(
                f"{self.file} names no models; add a table [[models]] with path ="
                ' "models/**/*.onnx", or name a MODEL'
            )
        entries: dict[str, list[ModelEntry]] = {}
        for number, entry in enumerate(self.document.models):
            matched = self._matched(entry)
            if not matched:
                raise ConfigError(
                    f"{self.file}: models[{number}].path: {entry.path!r} matches no file below"
                    f" {self.folder}"
                )
            for key in matched:
                entries.setdefault(key, []).append(entry)
        if len(entries) > _MOST_MODELS:
            raise ConfigError(
                f"{self.file} matches {len(entries)} models, more than {_MOST_MODELS}; narrow the"
                " globs, or write several files and name one with --config"
            )
        return {_shown(key): self._merged(matching) for key, matching in entries.items()}

    def _matched(self, entry: ModelEntry) -> list[str]:
        """Return the keys of what an entry names: absolute paths in order, or the URI."""
        if "://" in entry.path:
            return [entry.path]
        if (self.folder / entry.path).exists():  # a name may hold the characters of a glob
            return [_key(entry.path, self.folder)]
        found = glob.glob(entry.path, root_dir=self.folder, recursive=True)
        return sorted(_key(each, self.folder) for each in found if (self.folder / each).is_file())

    def _merged(self, entries: list[ModelEntry]) -> ModelOptions:
        merged = ModelOptions()
        for entry in reversed(entries):
            merged = merged.over(entry)
        merged = merged.over(self.document.defaults)
        paths = {
            name: str(self.folder / path)
            for name in ("samples", "calibration")
            if (path := getattr(merged, name)) is not None
        }
        return merged.model_copy(update=paths)


def find(start: Path) -> Path | None:
    """Return the configuration of a folder, or of the nearest folder above it."""
    folders = (start.resolve(), *start.resolve().parents)
    return next((file for each in folders if (file := each / NAME).is_file()), None)


def _key(source: str, folder: Path) -> str:
    """Return the name under which a model is known, whatever way it was written."""
    return source if "://" in source else os.path.abspath(folder / source)


def _shown(key: str) -> str:
    return key if "://" in key else os.path.relpath(key)


def _problem(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, which its plugin hides
    """Say what is wrong with one key."""
    where = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"]
    ).lstrip(".")
    if error["type"] == "extra_forbidden":
        return _unknown(where, error["loc"])
    if error["type"] == "missing":
        return f'{where} is missing; write path = "models/*.onnx"'
    if error["type"] == "tuple_type":
        table = where == "models"
        wanted = "write it as [[models]]" if table else 'write a list, such as ["cpu", "sm89"]'
        return f"{where} is no list; {wanted}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _unknown(where: str, steps: tuple[int | str, ...]) -> str:
    """Name the nearest key that there is."""
    tables: dict[str, type[BaseModel]] = {"defaults": ModelOptions, "models": ModelEntry}
    table = tables.get(str(steps[0]), Document) if len(steps) > 1 else Document
    known = list(table.model_fields)
    name = str(steps[-1])
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    if near:
        return f"{where} is no key; did you mean {near[0]}?"
    return f"{where} is no key; there are {', '.join(known)}"
