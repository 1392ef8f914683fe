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
from enginewright.plan.engines.other_backends import benchmark_backends, why_no_image
from enginewright.plan.engines.wanted import Engines, is_ahead_of_time
from enginewright.plan.resolve.resolve import Target
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
    waits: str = ""  # for an image that is being probed: no new revision is wanted until then; empty: it does not

    def given_up(self, failure: RolloutFailure) -> "Choice":
        """Return the choice after what was chosen has failed."""
        return replace(
            self,
            classes=tuple(self._without(each, failure) for each in self.classes),
            chosen={},
            failed=failure,
        )

    def _without(self, choice: BackendChoice, failure: RolloutFailure) -> BackendChoice:
        if choice.class_name not in self.chosen:
            return choice
        why = f"revision {failure.revision} with {choice.backend} failed: {failure.message}"
        update = {"backend": choice.engine_backend, "message": f"{choice.message}; {why}"}
        return choice.model_copy(update=update)


def choose(facts: Facts, target: Target, prepared: Prepared, engines: Engines) -> Choice | None:
    """Return what serves on each class; None: the spec leaves that to the order of backends, or engines are missing."""
    if facts.model.spec.build.choose != "Fastest" or not (engines.needed and engines.complete):
        return None
    names = {each.class_name: each.name for each in engines.references}
    before = {each.class_name: each for each in facts.model.status.choices}
    classes: list[BackendChoice] = []
    medians: dict[str, str] = {}
    waits, keeps, failed = "", False, facts.model.status.failed_choice
    for each in target.classes:
        name = each.metadata.name
        engine = facts.engines[names[name]].status.engine
        wanted = benchmark_backends(facts, target, prepared.precision, each)
        found = _compared(engine, wanted)
        medians[name] = _medians(found)
        unknown = _unknown_images(facts.config, facts.images, target, found)
        may_serve = [
            one for one in found if one.backend in unknown or not _why_not(facts, target, one)
        ]
        waits = waits or _awaited(facts, target, may_serve, unknown)
        kept = _kept(target, before.get(name), may_serve) if unknown else None
        keeps = keeps or kept is not None
        classes.append(kept or _choose_on(facts, target, each, found, wanted))
    if keeps and failed:  # all of it, or another part of it would be tried
        classes = [before.get(each.class_name, each) for each in classes]
    chosen = {
        each.class_name: ChosenBackend(each.backend, facts.config.images[VARIANTS[each.backend]])
        for each in classes
        if each.backend != target.backend
    }
    carried = failed if keeps and not chosen else None
    return Choice(tuple(classes), _summary(medians), chosen, carried, waits)


def _awaited(
    facts: Facts, target: Target, may_serve: Sequence[EngineBackend], unknown: Mapping[str, str]
) -> str:
    """Return why the backend that would be chosen is not known to serve yet; empty: it is, or another one would be."""
    fastest = _fastest(target.backend, may_serve)
    image = unknown.get(fastest)
    is_probed = image is not None and image not in facts.image_failures
    return why_no_image(facts, target, fastest) if is_probed else ""


def _choose_on(
    facts: Facts,
    target: Target,
    accelerator: AcceleratorClass,
    found: Sequence[EngineBackend],
    wanted: Sequence[str],
) -> BackendChoice:
    unusable = {one.backend: why for one in found if (why := _why_not(facts, target, one))}
    reasons = (
        _medians(found) or target.backend,
        *(f"{other} cannot serve: {reason}" for other, reason in unusable.items()),
        _not_compared(target, accelerator, found, wanted),
    )
    return BackendChoice(
        class_name=accelerator.metadata.name,
        backend=_fastest(target.backend, [one for one in found if one.backend not in unusable]),
        engine_backend=target.backend,
        message="; ".join(filter(None, reasons)),
    )


def _kept(
    target: Target, before: BackendChoice | None, may_serve: Sequence[EngineBackend]
) -> BackendChoice | None:
    """Return the choice before, which holds while an image cannot be probed; None: none, or it cannot serve any more."""
    if before is None or before.engine_backend != target.backend:
        return None
    holds = before.backend in {target.backend, *(each.backend for each in may_serve)}
    return before if holds else None


def _unknown_images(
    config: Config, probed: Mapping[str, ImageFacts], target: Target, found: Sequence[EngineBackend]
) -> dict[str, str]:
    """Return the images, by measured backend, of which it is not known now what they contain."""
    images = {
        each.backend: config.images.get(VARIANTS[each.backend], "")
        for each in found
        if each.backend != target.backend and not each.excluded
    }
    return {name: image for name, image in images.items() if image and image not in probed}


def failure_of(model: InferenceModel, revision: str) -> RolloutFailure | None:
    """Return why the revision with the chosen backends failed; None: it has not, or a user insists on it."""
    known = model.status.failed_choice
    insists = model.metadata.annotations.get(PROMOTE) == revision
    return known if known and known.revision == revision and not insists else None


def choice_events(
    before: Sequence[BackendChoice], now: Sequence[BackendChoice]
) -> tuple[EventIntent, ...]:
    """Return an Event for each class for which a backend is chosen, or another one than before."""
    known = {(each.class_name, each.backend) for each in before}
    return tuple(
        EventIntent(
            "Normal",
            StatusReason.BACKEND_CHOSEN,
            f"{each.backend} on class {each.class_name}: {each.message}",
        )
        for each in now
        if (each.class_name, each.backend) not in known
    )


def _compared(engine: EngineFacts | None, wanted: Sequence[str]) -> tuple[EngineBackend, ...]:
    """Return the backends that were compared, the engine's first, of those that may serve now."""
    found = engine.backends if engine else ()
    return tuple(each for at, each in enumerate(found) if at == 0 or each.backend in wanted)


def _fastest(engine_backend: str, found: Sequence[EngineBackend]) -> str:
    """Return the fastest backend; one that is preferred, the engine's first of all, needs not be faster by the margin."""
    best, median = engine_backend, None
    for each in found:
        p50 = each.p50_microseconds
        if p50 is not None and (median is None or p50 < median * (1 - MARGIN)):
            best, median = each.backend, p50
    return best


def _why_not(facts: Facts, target: Target, compared: EngineBackend) -> str:
    """Return why a backend cannot serve, though it was to be compared; empty: it can."""
    if compared.excluded or compared.backend == target.backend:
        return compared.excluded
    return why_no_image(facts, target, compared.backend)


def _not_compared(
    target: Target,
    accelerator: AcceleratorClass,
    found: Sequence[EngineBackend],
    wanted: Sequence[str],
) -> str:
    """Return which backends were not compared with the engine, and why; empty: all were."""
    if is_ahead_of_time(target, accelerator):
        return "not compared: its engine is built ahead of time, without a device to measure on"
    if not wanted:
        return (
            f"not compared: no other backend of spec.backends runs this model on the class"
            f" {accelerator.metadata.name} in the image {target.image}"
        )
    missing = [each for each in wanted if each not in {one.backend for one in found}]
    if not missing:
        return ""
    return f"not compared with {', '.join(missing)}: its engine was built without that"


def _medians(found: Sequence[EngineBackend]) -> str:
    known = [
        (each.p50_microseconds, each.backend) for each in found if each.p50_microseconds is not None
    ]
    return ", ".join(f"{backend}: {_time(median)}" for median, backend in sorted(known))


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
