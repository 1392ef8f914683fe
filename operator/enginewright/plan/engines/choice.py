"""Which backend serves on each class, by the benchmarks of its engine's Job, if `spec.build.choose` requests it.

The choice is a revision like any other, with the prepared model in place of the engines of some classes: it is
proved and rolled out, and what served before serves until then. If it fails, the engines serve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.images import VARIANTS, ImageFacts

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import EngineBackend, EngineFacts
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import BackendChoice, Prepared, RolloutFailure
from enginewright.manifests.labels import PROMOTE
from enginewright.plan.engines.wanted import Engines, is_ahead_of_time
from enginewright.plan.resolve.backends import benchmark_backends
from enginewright.plan.resolve.resolve import Target, why_no_image
from enginewright.plan.types import Config, EventIntent, Facts

# By which a backend must be faster than one that is preferred to it: medians of one model differ by less from
# run to run, and a rollout for the rest is not worthwhile.
MARGIN: Final = 0.05


@dataclass(frozen=True)
class ChosenBackend:
    """What serves on a class in place of its engine."""

    backend: str
    image: str


@dataclass(frozen=True)
class Choice:
    """What serves on the classes of a model whose engines are all built."""

    classes: tuple[BackendChoice, ...]
    summary: str  # the medians, for `kubectl get`
    chosen: Mapping[str, ChosenBackend] = field(default_factory=dict)  # in place of engines
    failed: RolloutFailure | None = None  # of the revision with `chosen`: the engines serve
    waits: str = ""  # for an image that is being probed: there is no new revision until then

    def give_up(self, failure: RolloutFailure) -> "Choice":
        """Return the choice after what was chosen has failed."""
        classes = tuple(self._without(device_class, failure) for device_class in self.classes)
        return replace(self, classes=classes, chosen={}, failed=failure)

    def _without(self, choice: BackendChoice, failure: RolloutFailure) -> BackendChoice:
        if choice.class_name not in self.chosen:
            return choice
        why = f"revision {failure.revision} with {choice.backend} failed: {failure.message}"
        update = {"backend": choice.engine_backend, "message": f"{choice.message}; {why}"}
        return choice.model_copy(update=update)


def choose(facts: Facts, target: Target, prepared: Prepared, engines: Engines) -> Choice | None:
    """Return what serves on each class, if the spec has benchmarks decide and no engine is missing."""
    if facts.model.spec.build.choose != "Fastest" or not (engines.needed and engines.complete):
        return None
    names = {reference.class_name: reference.name for reference in engines.references}
    before = {choice.class_name: choice for choice in facts.model.status.choices}
    classes: list[BackendChoice] = []
    medians: dict[str, str] = {}
    waits, keeps, failed = "", False, facts.model.status.failed_choice
    for device_class in target.classes:
        name = device_class.metadata.name
        engine = facts.engines[names[name]].status.engine
        backends = benchmark_backends(facts, target.image, prepared.precision, device_class)
        measured = _list_compared(engine, backends)
        medians[name] = _medians(measured)
        unknown = _find_unknown_images(facts.config, facts.images, target, measured)
        may_serve = [
            one for one in measured if one.backend in unknown or not _why_not(facts, target, one)
        ]
        waits = waits or _why_wait(facts, target, may_serve, unknown)
        kept = _keep_choice(target, before.get(name), may_serve) if unknown else None
        keeps = keeps or kept is not None
        classes.append(kept or _choose_on(facts, target, device_class, measured, backends))
    if keeps and failed:  # all of it, or another part of it would be tried
        classes = [before.get(device_class.class_name, device_class) for device_class in classes]
    chosen = {
        device_class.class_name: ChosenBackend(
            device_class.backend, facts.config.images[VARIANTS[device_class.backend]]
        )
        for device_class in classes
        if device_class.backend != target.backend
    }
    carried = failed if keeps and not chosen else None
    return Choice(tuple(classes), _summary(medians), chosen, carried, waits)


def _why_wait(
    facts: Facts, target: Target, may_serve: Sequence[EngineBackend], unknown: Mapping[str, str]
) -> str:
    """Return why it is not known yet whether the backend that would be chosen can serve."""
    fastest = _fastest(target.backend, may_serve)
    image = unknown.get(fastest)
    is_probed = image is not None and image not in facts.image_failures
    return why_no_image(facts, target, fastest) if is_probed else ""


def _choose_on(
    facts: Facts,
    target: Target,
    accelerator: AcceleratorClass,
    measured: Sequence[EngineBackend],
    backends: Sequence[str],
) -> BackendChoice:
    unusable = {one.backend: why for one in measured if (why := _why_not(facts, target, one))}
    reasons = (
        _medians(measured) or target.backend,
        *(f"{other} cannot serve: {reason}" for other, reason in unusable.items()),
        _not_compared(target, accelerator, measured, backends),
    )
    return BackendChoice(
        class_name=accelerator.metadata.name,
        backend=_fastest(target.backend, [one for one in measured if one.backend not in unusable]),
        engine_backend=target.backend,
        message="; ".join(filter(None, reasons)),
    )


def _keep_choice(
    target: Target, before: BackendChoice | None, may_serve: Sequence[EngineBackend]
) -> BackendChoice | None:
    """Return the choice before, if it can still serve: it holds while an image cannot be probed."""
    if before is None or before.engine_backend != target.backend:
        return None
    holds = before.backend in {target.backend, *(backend.backend for backend in may_serve)}
    return before if holds else None


def _find_unknown_images(
    config: Config,
    probed: Mapping[str, ImageFacts],
    target: Target,
    measured: Sequence[EngineBackend],
) -> dict[str, str]:
    images = {
        backend.backend: config.images.get(VARIANTS[backend.backend], "")
        for backend in measured
        if backend.backend != target.backend and not backend.excluded
    }
    return {name: image for name, image in images.items() if image and image not in probed}


def failure_of(model: InferenceModel, revision: str) -> RolloutFailure | None:
    """Return why the revision with the chosen backends failed, unless a user insists on it."""
    failure = model.status.failed_choice
    insists = model.metadata.annotations.get(PROMOTE) == revision
    return failure if failure and failure.revision == revision and not insists else None


def choice_events(
    before: Sequence[BackendChoice], now: Sequence[BackendChoice]
) -> tuple[EventIntent, ...]:
    """Return an Event for each class for which a backend is chosen, or another one than before."""
    reported = {(choice.class_name, choice.backend) for choice in before}
    return tuple(
        EventIntent(
            "Normal",
            StatusReason.BACKEND_CHOSEN,
            f"{choice.backend} on class {choice.class_name}: {choice.message}",
        )
        for choice in now
        if (choice.class_name, choice.backend) not in reported
    )


def _list_compared(
    engine: EngineFacts | None, backends: Sequence[str]
) -> tuple[EngineBackend, ...]:
    """Return the backends that were compared, the engine's first, of those that may serve now."""
    measured = engine.backends if engine else ()
    return tuple(
        backend for at, backend in enumerate(measured) if at == 0 or backend.backend in backends
    )


def _fastest(engine_backend: str, measured: Sequence[EngineBackend]) -> str:
    """Return the fastest backend: one replaces a preferred one, the engine's first of all, only if faster by the margin."""
    best, median = engine_backend, None
    for backend in measured:
        p50 = backend.p50_microseconds
        if p50 is not None and (median is None or p50 < median * (1 - MARGIN)):
            best, median = backend.backend, p50
    return best


def _why_not(facts: Facts, target: Target, compared: EngineBackend) -> str:
    if compared.excluded or compared.backend == target.backend:
        return compared.excluded
    return why_no_image(facts, target, compared.backend)


def _not_compared(
    target: Target,
    accelerator: AcceleratorClass,
    measured: Sequence[EngineBackend],
    backends: Sequence[str],
) -> str:
    if is_ahead_of_time(target, accelerator):
        return "not compared: its engine is built ahead of time, without a device to measure on"
    if not backends:
        return (
            f"not compared: no other backend of spec.backends runs this model on the class"
            f" {accelerator.metadata.name} in the image {target.image}"
        )
    missing = [backend for backend in backends if backend not in {one.backend for one in measured}]
    if not missing:
        return ""
    return f"not compared with {', '.join(missing)}: its engine was built without that"


def _medians(measured: Sequence[EngineBackend]) -> str:
    medians = (
        (engine_backend.p50_microseconds, engine_backend.backend)
        for engine_backend in measured
        if engine_backend.p50_microseconds is not None
    )
    return ", ".join(f"{backend}: {_time(median)}" for median, backend in sorted(medians))


def _time(microseconds: int) -> str:
    """Return a time with three digits: 0.053 ms, 2.1 ms, 1.25 s."""
    if microseconds < 999_500:  # that would be 1e+03 ms
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s"


def _summary(medians: Mapping[str, str]) -> str:
    shown = {name: text for name, text in medians.items() if text}
    if len(medians) == 1:
        return next(iter(shown.values()), "")[:TEXT_LENGTH]
    return "; ".join(f"{name} {text}" for name, text in shown.items())[:TEXT_LENGTH]
