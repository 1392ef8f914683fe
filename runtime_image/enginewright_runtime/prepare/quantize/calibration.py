"""Reads the user's calibration data, one sample at a time: it may be larger than memory.

It has one of three formats, as in docs/precision.md: one .npz with an array for each input, .npy
files, or images. Pickled data is never read. Data that does not match the model is refused, naming
the array.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Preprocessing
from numpy.typing import NDArray
from PIL import Image

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import CALIBRATION_DATA

Array = NDArray[Any]
Feeds = dict[str, Array]
# NVIDIA TensorRT, "Calibrating networks": about 500 images suffice for ImageNet classifiers.
ENOUGH: Final = 500
_NPY: Final = ".npy"
_IMAGES: Final = frozenset({".jpg", ".jpeg", ".png"})


@dataclass(frozen=True)
class CalibrationData:
    """Samples that can be iterated repeatedly."""

    samples: int  # how many are used
    given: int  # how many there are
    _open: Callable[[], Iterator[Feeds]]

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the inputs of one run at a time, by name; checked, without NaN."""
        for index, feeds in enumerate(self._open()):
            if index == self.samples:
                return
            yield feeds


def read(
    folder: Path,
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> CalibrationData:
    """Open at most `limit` samples, evenly spaced, to be read when iterated; raises CalibrationInvalid."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if (archive := folder / CALIBRATION_DATA) in files:
        return _Arrays(archive, inputs).data(limit)
    if arrays := [path for path in files if path.suffix.lower() == _NPY]:
        return _npy_data(folder, arrays, inputs, limit)
    if images := [path for path in files if path.suffix.lower() in _IMAGES]:
        return _image_data(images, inputs, preprocessing, limit)
    kinds = ", ".join(sorted({path.suffix or path.name for path in files})[:5]) or "no files"
    raise _invalid(f"it has {kinds}, and must be one .npz file, .npy files, or images (.jpg, .png)")


def _choose_samples(given: int, limit: int | None) -> list[int]:
    """Return the samples to use, evenly spaced: data is often sorted by class."""
    if limit is None or given <= limit:
        return list(range(given))
    return [index * given // limit for index in range(limit)]


class _Arrays:
    def __init__(self, path: Path, inputs: Sequence[TensorSpec]) -> None:
        self._path = path
        self._inputs = inputs
        self._forms: dict[str, tuple[tuple[int, ...], np.dtype[Any], bool]] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    with archive.open(member) as file:
                        self._forms[member.removesuffix(_NPY)] = _header(file)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise _invalid(
                f"{path.name} is not an .npz file of plain arrays: {_plain(error)}"
            ) from error

    def data(self, limit: int | None) -> CalibrationData:
        names = [spec.name for spec in self._inputs]
        if unknown := sorted(self._forms.keys() - set(names)):
            raise _invalid(
                f"array {unknown[0]!r} matches no input; the model has {', '.join(names)}"
            )
        if missing := sorted(set(names) - self._forms.keys()):
            raise _invalid(f"there is no array for input {missing[0]!r}")
        steps = {}
        for spec in self._inputs:
            shape, dtype, _ = self._forms[spec.name]
            _check_type(spec, dtype, f"array {spec.name!r}")
            steps[spec.name] = _step(spec, shape)
        counts = {
            spec.name: self._forms[spec.name][0][0] // max(1, steps[spec.name] or 1)
            for spec in self._inputs
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise _invalid(f"the arrays hold different numbers of samples: {listed}")
        given = next(iter(counts.values()), 0)
        if not given:
            raise _invalid("the arrays hold no samples")
        chosen = _choose_samples(given, limit)
        return CalibrationData(len(chosen), given, lambda: self._samples(steps, set(chosen)))

    def _samples(self, steps: Mapping[str, int | None], chosen: set[int]) -> Iterator[Feeds]:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self._path))
            readers = {
                spec.name: self._pieces(
                    stack.enter_context(archive.open(f"{spec.name}{_NPY}")), spec, steps[spec.name]
                )
                for spec in self._inputs
            }
            for index in range(max(chosen) + 1):
                feeds = {name: next(reader) for name, reader in readers.items()}
                if index in chosen:
                    for name, array in feeds.items():
                        _check_values(array, f"array {name!r}, sample {index}")
                    yield feeds

    def _pieces(self, file: IO[bytes], spec: TensorSpec, step: int | None) -> Iterator[Array]:
        shape, dtype, fortran = _header(file)
        rows = step or 1
        if fortran:  # its first axis varies fastest, so samples are not contiguous
            array = np.frombuffer(file.read(), dtype).reshape(shape, order="F")
            for start in range(0, shape[0] // rows * rows, rows):
                yield np.ascontiguousarray(
                    array[start] if step is None else array[start : start + rows]
                )
            return
        size = int(np.prod(shape[1:], dtype=np.int64)) * rows * dtype.itemsize
        piece = shape[1:] if step is None else (rows, *shape[1:])
        for _ in range(shape[0] // rows):
            content = file.read(size)
            if len(content) < size:
                raise _invalid(f"array {spec.name!r} is truncated")
            yield np.frombuffer(content, dtype).reshape(piece)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, dtype, fortran


def _step(spec: TensorSpec, shape: tuple[int, ...]) -> int | None:
    """Return how many rows of an array one run takes, or None if each element along axis 0 is a sample."""
    rank = len(spec.shape)
    if len(shape) == rank + 1 and _fits(spec.shape, shape[1:]):
        return None
    if rank and len(shape) == rank and _fits(spec.shape[1:], shape[1:]):
        batch = spec.shape[0]
        rows = batch if isinstance(batch, int) else 1
        if shape[0] >= rows:
            return rows
        raise _invalid(f"array {spec.name!r} has {shape[0]} rows, and a run takes {rows}")
    raise _invalid(
        f"array {spec.name!r} has shape {list(shape)}; the model takes {_shape(spec)}, so it must be"
        f" [samples, {', '.join(_sizes(spec.shape[1:]))}]".replace(", ]", "]")
    )


def _npy_data(
    folder: Path, files: Sequence[Path], inputs: Sequence[TensorSpec], limit: int | None
) -> CalibrationData:
    groups = {
        spec.name: [path for path in files if _owner(folder, path) == spec.name] for spec in inputs
    }
    if len(inputs) == 1 and not groups[inputs[0].name]:
        groups = {inputs[0].name: list(files)}
    counts = {name: len(paths) for name, paths in groups.items()}
    if empty := [name for name, count in counts.items() if not count]:
        raise _invalid(
            f"there are no .npy files for input {empty[0]!r}: put those of each input into a folder"
            " of its name"
        )
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise _invalid(f"there are different numbers of .npy files: {listed}")
    given = next(iter(counts.values()))
    chosen = _choose_samples(given, limit)

    def samples() -> Iterator[Feeds]:
        for index in chosen:
            yield {spec.name: _npy(groups[spec.name][index], spec) for spec in inputs}

    return CalibrationData(len(chosen), given, samples)


def _owner(folder: Path, path: Path) -> str:
    return path.relative_to(folder).parts[0] if path.parent != folder else ""


def _npy(path: Path, spec: TensorSpec) -> Array:
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise _invalid(
            f"{path.name} is not an .npy file of a plain array: {_plain(error)}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise _invalid(f"{path.name} is not an .npy file")
    place = f"{path.name}, for input {spec.name!r},"
    _check_type(spec, array.dtype, place)
    if len(array.shape) + 1 == len(spec.shape):
        array = array[np.newaxis]
    if not _fits(spec.shape, array.shape):
        raise _invalid(f"{place} has shape {list(array.shape)}, the model takes {_shape(spec)}")
    _check_values(array, place)
    return np.asarray(array)


def _image_data(
    files: Sequence[Path],
    inputs: Sequence[TensorSpec],
    preprocessing: Preprocessing | None,
    limit: int | None,
) -> CalibrationData:
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise _invalid(f"images are data for one input, but the model has {len(inputs)}: {names}")
    spec = inputs[0]
    if preprocessing is None:
        raise _invalid(
            "images need preprocessing to become the model's input, and none is declared",
            remedy="add spec.quantization.calibration.preprocessing, with width and height",
        )
    channels = 1 if preprocessing.color == "Gray" else 3
    for name in ("mean", "std"):
        if len(getattr(preprocessing, name)) not in {0, 1, channels}:
            raise _invalid(
                f"preprocessing.{name} has {len(getattr(preprocessing, name))} numbers, and"
                f" {preprocessing.color} images have {channels} channels"
            )
    size = (preprocessing.height, preprocessing.width)
    shape = (1, channels, *size) if preprocessing.layout == "NCHW" else (1, *size, channels)
    if spec.dtype not in {"float32", "uint8"} or not _fits(spec.shape, shape):
        raise _invalid(
            f"preprocessing turns an image into float32 {list(shape)}, but input {spec.name!r} takes"
            f" {spec.dtype} {_shape(spec)}",
            remedy="correct width, height, layout and color in spec.quantization.calibration.preprocessing",
        )
    chosen = _choose_samples(len(files), limit)

    def samples() -> Iterator[Feeds]:
        for index in chosen:
            yield {spec.name: image(files[index], preprocessing).astype(spec.dtype)}

    return CalibrationData(len(chosen), len(files), samples)


def image(path: Path, how: Preprocessing) -> NDArray[np.float32]:
    """Return an image as the model's input, a batch of one."""
    try:
        with Image.open(path) as opened:
            gray = how.color == "Gray"
            scaled = opened.convert("L" if gray else "RGB").resize(
                (how.width, how.height), Image.Resampling.BILINEAR
            )
            pixels = np.asarray(scaled, np.float32)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _invalid(f"{path.name} cannot be read as an image: {_plain(error)}") from error
    if gray:
        pixels = pixels[:, :, np.newaxis]
    elif how.color == "BGR":
        pixels = pixels[:, :, ::-1]
    mean = np.asarray(how.mean or (0.0,), np.float32)
    std = np.asarray(how.std or (1.0,), np.float32)
    pixels = (pixels / np.float32(how.scale) - mean) / std
    if how.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[np.newaxis], np.float32)


def _check_type(spec: TensorSpec, dtype: np.dtype[Any], place: str) -> None:
    if spec.dtype == "string":
        raise _invalid(f"input {spec.name!r} takes strings, which have no range to calibrate")
    fits = dtype.itemsize == 2 if spec.dtype == "bfloat16" else dtype == np.dtype(spec.dtype)
    if not fits:
        raise _invalid(f"{place} has type {dtype}, the model takes {spec.dtype}")


def _check_values(array: Array, place: str) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _invalid(f"{place} has values that are NaN or infinite")


def _fits(shape: Sequence[int | str | None], sizes: Sequence[int]) -> bool:
    return len(shape) == len(sizes) and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(shape, sizes, strict=True)
    )


def _sizes(shape: Sequence[int | str | None]) -> list[str]:
    return ["?" if size is None else str(size) for size in shape]


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join(_sizes(spec.shape))}]"


def _plain(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "it holds Python objects" if "pickle" in text.lower() else text


def _invalid(cause: str, *, remedy: str | None = None) -> StageFailure:
    return StageFailure(
        Reason.CALIBRATION_INVALID,
        f"the data of spec.quantization.calibration cannot be used: {cause}",
        remedy=remedy,
    )
