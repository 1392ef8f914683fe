"""The request for one model, from its options: validated completely before anything starts."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from enginewright_contract.images import COMPILED_BACKENDS, ImageFacts
from enginewright_contract.masking import mask
from enginewright_contract.schemes import PVC
from enginewright_contract.task import MOST_STEPS, Processing, Promise, Recipe

from enginewright_cli.formatting import visible
from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.config import ModelOptions
from enginewright_cli.preflight.targets import PreflightTarget
from enginewright_cli.reporting import CommandError

_MISSING: Final = "no such file"
# claims that stand for folders of this machine
_CLAIM: Final = "local"
_SAMPLES_CLAIM: Final = "local-samples"
_CALIBRATION_CLAIM: Final = "local-calibration"


@dataclass(frozen=True)
class PreflightRequest:
    """The model to check, and how."""

    source: str  # a path of this machine, or a URI as in spec.source.uri
    targets: tuple[PreflightTarget, ...]
    recipe: Recipe  # its backend and versions are filled in for each target
    promise: Promise
    samples: Path | None = None
    calibration: Path | None = None
    sent: Path | None = None  # a request that each target answers
    backends: tuple[str, ...] = ()  # that `--backend` leaves, like spec.backends
    # why targets cannot be checked here, by their names
    unchecked: dict[str, str] = field(default_factory=dict)
    # the steps in the recipe that are on this machine, by their name, which is also that of their claim
    steps: dict[str, Path] = field(default_factory=dict)

    @property
    def checked(self) -> tuple[PreflightTarget, ...]:
        """Return the targets that can be checked here, at least one."""
        return tuple(target for target in self.targets if target.name not in self.unchecked)

    @property
    def shown(self) -> str:
        """Return the source for people: without the secrets in an address."""
        return mask(self.source)

    def name_local_files(self, text: str) -> str:
        """Return a stage's text with the folders of this machine instead of the claims that stand for them."""
        source = None if "://" in self.source else Path(self.source)
        if source and source.name in ("", ".."):  # the folder has its name elsewhere
            source = source.resolve()
        claims = {
            _CLAIM: source,
            _SAMPLES_CLAIM: self.samples,
            _CALIBRATION_CLAIM: self.calibration,
            **self.steps,
        }
        for claim, path in claims.items():
            if path is not None:
                text = _name_folder(text, claim, path.parent)
        return text


def request(
    source: str,
    model_options: ModelOptions,
    probe: Callable[[], ImageFacts],
    image: tuple[str, ImageFacts] | None,
) -> PreflightRequest:
    """Return the request; `probe` says what is installed here, `image` will serve.

    It takes seconds the first time, so what does not depend on it is read before.

    Raises:
        OptionError, TargetError, CommandError: something cannot be checked.
    """
    samples = _data("samples", model_options.samples, folder=False)
    calibration = _data("calibration", model_options.calibration, folder=True)
    sent = _data("request", model_options.request, folder=False)
    steps: dict[str, Path] = {}
    processing = Processing(
        before=_steps("before", model_options.before, steps),
        after=_steps("after", model_options.after, steps),
    )
    shapes = tuple(map(options.shape, model_options.shapes or ()))
    target_precision = options.precision(model_options.precision)
    rest_precision = options.rest(model_options.rest)
    extensions = tuple(map(options.extension, model_options.extensions or ()))
    promise = options.promise(model_options.budget)
    backend = targets.read_backend(model_options.backend)
    named = _parse_targets(model_options.targets or (), backend)
    held = probe()
    chosen = _choose_targets(
        named or _parse_targets(targets.defaults(held), backend),
        held,
        image,
        locked=image is None and model_options.runtime_version is None,
        defaults=not named,
    )
    unchecked = {
        target.name: why for target in chosen if (why := targets.why_unchecked(target, held))
    }
    if len(unchecked) == len(chosen):
        raise CommandError("; ".join(unchecked.values()))
    if sent and all(
        target.backend in COMPILED_BACKENDS or target.name in unchecked for target in chosen
    ):
        raise options.OptionError(
            f"--request {sent}: no target answers it, since engines are not run here; add --target cpu"
        )
    return PreflightRequest(
        source=source,
        targets=chosen,
        recipe=options.recipe(
            image[1] if image else held,
            shapes=shapes,
            target_precision=target_precision,
            runtime_version=model_options.runtime_version,
            target_opset=model_options.target_opset,
            samples_uri=local_uri(samples, _SAMPLES_CLAIM) if samples else None,
            calibration_uri=local_uri(calibration, _CALIBRATION_CLAIM) if calibration else None,
            rest_precision=rest_precision,
            extensions=extensions,
            processing=processing if processing.steps() else None,
        ),
        promise=promise,
        samples=samples,
        calibration=calibration,
        sent=sent.resolve() if sent else None,
        backends=tuple(dict.fromkeys(target.backend for target in chosen))
        if model_options.backend
        else (),
        unchecked=unchecked,
        steps=steps,
    )


def _name_folder(text: str, claim: str, folder: Path) -> str:
    text = text.replace(f"{PVC.prefix}{claim}/", f"{folder.as_posix().rstrip('/')}/")
    return re.sub(rf"\bclaim {re.escape(claim)}(?![\w-])", lambda _: f"folder {folder}", text)


def _parse_targets(names: Sequence[str], backend: str | None) -> tuple[PreflightTarget, ...]:
    parsed = tuple(targets.parse(name, backend) for name in names)
    if parsed and backend and all(target.backend != backend for target in parsed):
        shown = ", ".join(target.name for target in parsed)
        raise options.OptionError(
            f"--backend {backend} runs on none of the targets {shown}; give a --target for it"
        )
    return parsed


def _choose_targets(
    named: Sequence[PreflightTarget],
    held: ImageFacts,
    image: tuple[str, ImageFacts] | None,
    *,
    locked: bool,
    defaults: bool,
) -> tuple[PreflightTarget, ...]:
    """Return the targets with what runs them here; of defaults, those that the image serves."""
    settled = (targets.settle(target, held, image and image[1], locked=locked) for target in named)
    chosen = tuple(dict.fromkeys(settled))
    if image is None:
        return chosen
    reference, facts = image
    supported = tuple(
        item for item in chosen if (item.stands_for or item.backend) in facts.backends
    )
    if not supported or (not defaults and len(supported) < len(chosen)):
        missing = next(target for target in chosen if target not in supported)
        raise targets.TargetError(
            f"target {missing.name} needs backend {missing.backend}, but image {reference} has"
            f" {', '.join(facts.backends) or 'none'}; choose another --image or --target"
        )
    return supported


def _steps(option: str, sources: tuple[str, ...] | None, local: dict[str, Path]) -> tuple[str, ...]:
    """Return the addresses of the steps of an option; add those on this machine to `local`."""
    steps = sources or ()
    if len(steps) > MOST_STEPS:
        raise options.OptionError(
            f"--{option}: {len(steps)} steps, more than {MOST_STEPS}; merge some with"
            " onnx.compose.merge_models"
        )
    uris = []
    for number, step in enumerate(steps):
        if "://" not in step:
            name = f"{option}-{number}"
            _check_path(step, f"--{option} {step}")
            local[name] = Path(step).resolve()
            uris.append(local_uri(local[name], name))
        else:
            uris.append(step)
    return tuple(uris)


def check_source(source: str) -> None:
    """Verify, before anything starts, that a model's path names one. Raises OptionError."""
    if not source.isascii() and any(0xD800 <= ord(item) <= 0xDFFF for item in source):
        # surrogates, by which Python represents bytes that are not UTF-8; JSON cannot contain them
        raise options.OptionError(f"{visible(source)}: its name is not UTF-8; rename it")
    if "://" not in source:
        _check_path(source, source)


def _check_path(source: str, shown: str) -> None:
    path = Path(source)
    if path.is_symlink() and not path.exists():
        raise options.OptionError(f"{shown}: dangling link to {path.readlink()}")
    if not path.exists():
        raise options.OptionError(f"{shown}: {_MISSING}")
    if not path.is_file() and not path.is_dir():
        raise options.OptionError(f"{shown}: neither a file nor a folder")
    models = _list_models(path) if path.is_dir() else []
    if len(models) > 1:
        patterns = dict.fromkeys(
            f"{shlex.quote(str(model.parent))}/*{model.suffix}" for model in models
        )
        raise options.OptionError(
            f"{shown}: a folder with {len(models)} models, of which each is checked by itself; name one of"
            f" them, or all: enginewright preflight {' '.join(patterns)}"
        )


def _list_models(folder: Path) -> list[Path]:
    """Return the models of a folder among which stage `fetch` would choose: those directly in it, else those below."""
    for pattern in ("*", "**/*"):
        models = [
            path
            for path in sorted(folder.glob(pattern))
            if path.suffix.lower() == ".onnx"
            and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
        if models:
            return models
    return []


def _data(option: str, value: str | None, *, folder: bool) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.exists():
        raise options.OptionError(f"--{option} {value}: {_MISSING}")
    if not (path.is_file() or (folder and path.is_dir())):
        raise options.OptionError(f"--{option} {value}: not a file")
    return path


def local_uri(path: Path, claim: str = _CLAIM) -> str:
    """Return the URI at which stage `fetch` finds a file of this machine."""
    return f"{PVC.prefix}{claim}/{path.name}"
