"""Finds the libraries that belong to a model, checks their files, and loads them."""

import ctypes
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.reasons import Reason
from enginewright_contract.task import Extension

from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.extensions import bundled, elf

EXTENSIONS_FOLDER: Final = "extensions"  # beside the model's; its files are named <sha256>.so
SUFFIX: Final = ".so"
OPERATORS: Final = "CustomOperators"
PLUGIN: Final = "TensorRTPlugin"
BUNDLED: Final = "ONNXRuntimeExtensions"
# the entry point of SessionOptions::RegisterCustomOpsLibrary (onnxruntime_c_api.h)
_OPERATORS_ENTRY: Final = "RegisterCustomOps"
_PATH: Final = re.compile(r"/\S*/(?=[\w.-]+\.so)")
_DIGEST: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\.so")
_SHOWN: Final = 12  # characters of a digest


@dataclass(frozen=True)
class Libraries:
    """Libraries that may be loaded: every file matches the digest in its name."""

    operators: tuple[Path, ...] = ()  # of ONNX Runtime
    plugins: tuple[Path, ...] = ()  # of TensorRT


NO_LIBRARIES: Final = Libraries()


def folder_of(model: Path) -> Path:
    """Return the folder of a model's libraries, which may not exist."""
    return model.parent.parent / EXTENSIONS_FOLDER


def files_of(model: Path) -> dict[str, Path]:
    """Return the files of the libraries of a model, by their path in an artefact."""
    paths = _files(model)
    if (mark := folder_of(model) / bundled.MARK).is_file():
        paths.append(mark)
    return {f"{EXTENSIONS_FOLDER}/{path.name}": path for path in paths}


def of_model(model: Path) -> Libraries:
    """Return the libraries that belong to a model, checked; raises StageFailure: ExtensionFailed."""
    operators: list[Path] = []
    plugins: list[Path] = []
    for path in _files(model):
        kind = _check(path)
        (operators if kind == OPERATORS else plugins).append(path)
    if (folder_of(model) / bundled.MARK).is_file():
        operators.append(bundled.library())
    return Libraries(tuple(operators), tuple(plugins))


def key_data(listed: tuple[Extension, ...], version: str | None = None) -> dict[str, str]:
    """Return what extensions of the image, in a `version` of onnxruntime-extensions, add to a prepared model's key."""
    if not any(extension.type == BUNDLED for extension in listed):
        return {}
    version = version or bundled.version()
    return {} if version == bundled.IN_FIRST_RELEASE else {bundled.MARK: version}


def check_listed(model: Path, listed: tuple[Extension, ...]) -> Libraries:
    """Return the libraries of a model; raises StageFailure, ExtensionFailed, unless its recipe lists them."""
    libraries = of_model(model)
    for extension in listed:
        if extension.type == BUNDLED:
            if not (folder_of(model) / bundled.MARK).is_file():
                raise StageFailure(Reason.EXTENSION_FAILED, f"{bundled.MARK} was not declared")
            continue
        path = folder_of(model) / f"{extension.sha256}{SUFFIX}"
        kinds = {OPERATORS: libraries.operators, PLUGIN: libraries.plugins}
        if path in kinds[extension.type]:
            continue
        if not path.is_file():
            raise describe_failure(path, "it does not exist: it was not fetched")
        if extension.type == OPERATORS:
            raise describe_failure(
                path,
                f"it has no function {_OPERATORS_ENTRY}, with which ONNX Runtime registers operators",
            )
        raise describe_failure(
            path, f"it has operators for ONNX Runtime, but its type in spec.extensions is {PLUGIN}"
        )
    return libraries


def register(options: Any, libraries: Libraries) -> None:  # noqa: ANN401 - ONNX Runtime has no types
    """Register the libraries' operators in session options, which runs their code; raises StageFailure: ExtensionFailed."""
    for path in libraries.operators:
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            # ONNX Runtime's exceptions have no common base class but Exception
            raise describe_failure(path, short(str(error))) from error


def load_plugins(libraries: Libraries) -> None:
    """Load TensorRT's plug-ins, whose failures ONNX Runtime only logs; raises StageFailure: ExtensionFailed."""
    for path in libraries.plugins:
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise describe_failure(path, short(str(error))) from error


def describe_failure(path: Path, why: str) -> StageFailure:
    """Return the failure of one library."""
    name = bundled.MARK if bundled.owns(path) else path.name.removesuffix(SUFFIX)[:_SHOWN]
    return StageFailure(Reason.EXTENSION_FAILED, f"extension {name} cannot be used: {why}")


def short(text: str) -> str:
    """Return a loader's message in one line, without folders, with abbreviated digests."""
    message = _PATH.sub("", plain(text)).removeprefix("Failed to load library ")
    return _DIGEST.sub(r"\1", message.rpartition(" with error: ")[2])


def _files(model: Path) -> list[Path]:
    return sorted(folder_of(model).glob(f"*{SUFFIX}"))


def _check(path: Path) -> str:
    try:
        digest = file_sha256(path).sha256
        library = elf.read(path)
    except OSError as error:
        raise describe_failure(path, f"it cannot be read: {error.strerror}") from error
    except elf.NotALibraryError as error:
        raise describe_failure(path, str(error)) from error
    if digest != path.name.removesuffix(SUFFIX):
        raise describe_failure(path, f"its content has another digest, sha256 {digest[:_SHOWN]}")
    here = platform.machine()
    if library.machine != here:
        raise describe_failure(
            path, f"it is built for {library.machine}, but this image is for {here}"
        )
    return OPERATORS if _OPERATORS_ENTRY in library.exports else PLUGIN
