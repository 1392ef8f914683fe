"""The request for one model, from its options: validated completely before anything starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright.contract.images import ImageFacts
from enginewright.contract.task import Promise, Recipe

from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.config import ModelOptions
from enginewright_cli.preflight.formatting import visible

_MISSING: Final = "no such file"
_CLAIM: Final = "local"


@dataclass(frozen=True)
class PreflightRequest:
    """The model to check, and how."""

    source: str  # a path of this machine, or a URI as in spec.source.uri
    targets: tuple[targets.PreflightTarget, ...]
    recipe: Recipe  # its backend and versions are filled in for each target
    promise: Promise
    samples: Path | None = None
    calibration: Path | None = None


def request(
    source: str, model_options: ModelOptions, held: ImageFacts, image: tuple[str, ImageFacts] | None
) -> PreflightRequest:
    """Return the request for a model.

    Args:
        source: a path or a URI.
        model_options: its options.
        held: what is installed here.
        image: reference and contents of the image that will serve; None: that of this installation.

    Raises:
        OptionError, TargetError: an option is invalid.
    """
    _check_source(source)
    samples = _data("samples", model_options.samples, folder=False)
    calibration = _data("calibration", model_options.calibration, folder=True)
    return PreflightRequest(
        source=source,
        targets=_targets(model_options.targets, held, image),
        recipe=options.recipe(
            image[1] if image else held,
            shapes=tuple(map(options.shape, model_options.shapes or ())),
            target_precision=options.precision(model_options.precision),
            runtime_version=model_options.runtime_version,
            target_opset=model_options.target_opset,
            samples_uri=local_uri(samples) if samples else None,
            calibration_uri=local_uri(calibration) if calibration else None,
        ),
        promise=options.promise(model_options.budget),
        samples=samples,
        calibration=calibration,
    )


def _targets(
    names: tuple[str, ...] | None, held: ImageFacts, image: tuple[str, ImageFacts] | None
) -> tuple[targets.PreflightTarget, ...]:
    requested = tuple(dict.fromkeys(map(targets.parse, names or ())))
    found = requested or targets.defaults(held)
    for each in found:
        targets.check(each, held)
    if image is None:
        return found
    reference, serves = image
    supported = tuple(each for each in found if each.backend in serves.backends)
    if len(supported) < len(requested) or not supported:
        missing = next(each for each in found if each not in supported)
        raise targets.TargetError(
            f"target {missing.name} needs backend {missing.backend}, but image {reference} has"
            f" {', '.join(serves.backends) or 'none'}; choose another --image or --target"
        )
    return supported


def _check_source(source: str) -> None:
    if not source.isascii() and any(0xD800 <= ord(each) <= 0xDFFF for each in source):
        # surrogates, by which Python represents bytes that are not UTF-8; JSON cannot contain them
        raise options.OptionError(f"{visible(source)}: its name is not UTF-8; rename it")
    if "://" in source:
        return
    path = Path(source)
    if path.is_symlink() and not path.exists():
        raise options.OptionError(f"{source}: dangling link to {path.readlink()}")
    if not path.exists():
        raise options.OptionError(f"{source}: {_MISSING}")
    if not path.is_file() and not path.is_dir():
        raise options.OptionError(f"{source}: neither a file nor a folder")


def _data(option: str, value: str | None, *, folder: bool) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.exists():
        raise options.OptionError(f"--{option} {value}: {_MISSING}")
    if not (path.is_file() or (folder and path.is_dir())):
        raise options.OptionError(f"--{option} {value}: not a file")
    return path


def local_uri(path: Path) -> str:
    """Return the URI at which stage `fetch` finds a file of this machine."""
    return f"pvc://{_CLAIM}/{path.name}"
