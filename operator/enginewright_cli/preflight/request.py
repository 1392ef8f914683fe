"""From a model and its options to what is looked at. Nothing is started before all of it is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright.contract.images import ImageFacts
from enginewright.contract.task import Promise, Recipe

from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.config import ModelOptions
from enginewright_cli.preflight.formatting import visible

_MISSING: Final = "there is no such file"
_CLAIM: Final = "local"


@dataclass(frozen=True)
class PreflightRequest:
    """What is to be looked at, and how."""

    source: str  # a path of this machine, or a URI as in spec.source.uri
    targets: tuple[targets.PreflightTarget, ...]
    recipe: Recipe  # its backend and versions are filled in for each target
    promise: Promise
    samples: Path | None = None
    calibration: Path | None = None


def request(
    source: str, wanted: ModelOptions, held: ImageFacts, image: tuple[str, ImageFacts] | None
) -> PreflightRequest:
    """Return what is asked about a model.

    Args:
        source: a path or a URI.
        wanted: its options.
        held: what this installation holds.
        image: reference and contents of the image that is to serve; None: this installation's.

    Raises:
        OptionError, TargetError: something of it cannot be used.
    """
    _check_source(source)
    samples = _data("samples", wanted.samples, folder=False)
    calibration = _data("calibration", wanted.calibration, folder=True)
    return PreflightRequest(
        source=source,
        targets=_targets(wanted.targets, held, image),
        recipe=options.recipe(
            image[1] if image else held,
            shapes=tuple(map(options.shape, wanted.shapes or ())),
            wanted=options.precision(wanted.precision),
            runtime_version=wanted.runtime_version,
            target_opset=wanted.target_opset,
            samples_uri=local_uri(samples) if samples else None,
            calibration_uri=local_uri(calibration) if calibration else None,
        ),
        promise=options.promise(wanted.budget),
        samples=samples,
        calibration=calibration,
    )


def _targets(
    names: tuple[str, ...] | None, held: ImageFacts, image: tuple[str, ImageFacts] | None
) -> tuple[targets.PreflightTarget, ...]:
    asked = tuple(dict.fromkeys(map(targets.parse, names or ())))
    found = asked or targets.defaults(held)
    for each in found:
        targets.check(each, held)
    if image is None:
        return found
    reference, serves = image
    there = tuple(each for each in found if each.backend in serves.backends)
    if len(there) < len(asked) or not there:
        missing = next(each for each in found if each not in there)
        raise targets.TargetError(
            f"target {missing.name} needs backend {missing.backend}, and image {reference} holds"
            f" {', '.join(serves.backends) or 'none'}; name another --image or --target"
        )
    return there


def _check_source(source: str) -> None:
    if not source.isascii() and any(0xD800 <= ord(each) <= 0xDFFF for each in source):
        # what Python makes of bytes that are no UTF-8, which no JSON carries
        raise options.OptionError(f"{visible(source)}: its name is not UTF-8; rename it")
    if "://" in source:
        return
    path = Path(source)
    if path.is_symlink() and not path.exists():
        raise options.OptionError(
            f"{source}: it is a link to {path.readlink()}, which is not there"
        )
    if not path.exists():
        raise options.OptionError(f"{source}: {_MISSING}")
    if not path.is_file() and not path.is_dir():
        raise options.OptionError(f"{source}: that is neither a file nor a folder")


def _data(option: str, value: str | None, *, folder: bool) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.exists():
        raise options.OptionError(f"--{option} {value}: {_MISSING}")
    if not (path.is_file() or (folder and path.is_dir())):
        raise options.OptionError(f"--{option} {value}: that is not a file")
    return path


def local_uri(path: Path) -> str:
    """Return the address under which stage `fetch` finds a file of this machine."""
    return f"pvc://{_CLAIM}/{path.name}"
