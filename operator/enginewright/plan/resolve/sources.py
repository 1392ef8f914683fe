"""The content of a model's addresses: what was fetched first, until a refresh is requested.

The content of an address may change. Without a digest in the spec, a lost artefact, a new runtime
image or a revert would then serve another model than the one rolled out, so digests are pinned once they
are known: in the status for the current spec, in the revisions for specs that it may return to.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.keys import sha256_text

from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import (
    FetchedSource,
    InferenceModelStatus,
    Pin,
    Prepared,
    SourceState,
)
from enginewright.api.job_failure import JobFailure
from enginewright.api.scalars import duration, whole_second
from enginewright.manifests.labels import REFRESH
from enginewright.manifests.snapshot import KeptSource
from enginewright.observed.revisions import RevisionView
from enginewright.plan.resolve.recipe import steps_of

MODEL: Final = "model"
_LONGEST: Final = 64  # characters; longer values of the annotation are hashed
_KEPT_SOURCES: Final = 8  # sets of addresses


@dataclass(frozen=True)
class PinnedSource:
    """What a preparation must fetch."""

    pinned: Mapping[str, str] = field(default_factory=dict)  # digests by name
    refresh: str = ""  # the refresh that requests it, if any
    # digests of prepared content: while its version is unchanged, a refresh does not fetch it again
    fetched: Mapping[str, str] = field(default_factory=dict)


def pin_source(model: InferenceModel, revisions: Collection[RevisionView]) -> PinnedSource:
    """Return the content fetched from the spec's addresses, for this spec or an earlier one."""
    addresses = _addresses(model.spec)
    pinned: dict[str, str] = {}
    refresh = ""
    for item in _list_records(model.status, revisions):
        pins = {
            pin.name: pin.digest for pin in item.pins if _address(pin) == addresses.get(pin.name)
        }
        if MODEL not in pins or pins[MODEL] != pinned.get(MODEL, pins[MODEL]):
            continue
        refresh = refresh if pinned else item.refresh
        pinned = pins | pinned  # samples or calibration data may be pinned by an older entry
    return PinnedSource(pinned, refresh)


def is_pinned(spec: InferenceModelSpec, source: PinnedSource) -> bool:
    """Return whether everything that is fetched is known by its digest, so that it cannot change."""
    return all(sha256 or name in source.pinned for name, (_, sha256) in _addresses(spec).items())


def digests_in_spec(spec: InferenceModelSpec) -> dict[str, str] | None:
    """Return the digests of everything that is fetched, by name, or None if the spec lacks one."""
    digests = {name: sha256 for name, (_, sha256) in _addresses(spec).items()}
    return digests if all(digests.values()) else None


def refresh_source(
    model: InferenceModel, revisions: Collection[RevisionView], refresh: str, *, prepared: bool
) -> PinnedSource:
    """Return what a refresh fetches: any content, and unchanged content only if it is not `prepared`.

    Then every stage must run: the store may have an artefact that another runtime image made of it.
    """
    fetched = pin_source(model, revisions).pinned if prepared else {}
    return PinnedSource(refresh=refresh, fetched=fetched)


def _list_records(
    status: InferenceModelStatus, revisions: Collection[RevisionView]
) -> Iterator[FetchedSource | KeptSource]:
    if source := status.source:
        yield source
        yield from source.earlier
    for revision in sorted(revisions, key=lambda view: -view.number):
        if revision.kept and revision.kept.source:
            yield revision.kept.source


def find_refresh(model: InferenceModel, now: datetime) -> str | None:
    """Return the unique name of the refresh to do now, if any."""
    source = model.status.source
    count = source.refreshes if source else 0
    if requested := _read_refresh(model):
        return f"{count} {requested}"
    wait = seconds_to_refresh(model, now)
    return f"{count} due" if wait is not None and wait <= 0 else None


def _read_refresh(model: InferenceModel) -> str:
    """Return the annotation's value if it was not acted on yet."""
    requested, source = annotation(model, REFRESH), model.status.source
    return "" if source and requested == source.requested else requested


def annotation(model: InferenceModel, name: str) -> str:
    """Return the value of an annotation, hashed if it is long, as the status records it."""
    value = model.metadata.annotations.get(name, "")
    return sha256_text(value) if len(value) > _LONGEST else value


def seconds_to_refresh(model: InferenceModel, now: datetime) -> float | None:
    """Return the seconds until a refresh is due, if there is an interval and a last one."""
    interval = duration(model.spec.source.refresh_interval)
    source = model.status.source
    if not interval or source is None or source.looked_at is None:
        return None
    due = min(source.looked_at, now) + interval  # the clock may have been set back
    return (due - now) / timedelta(seconds=1)


def record_fetch(
    model: InferenceModel, now: datetime, prepared: Prepared, data: Mapping[str, str], refresh: str
) -> SourceState:
    """Return the state after a model was prepared; `data` are digests of samples and calibration data."""
    before = model.status.source or SourceState()
    digests = {MODEL: prepared.model_digest, **data}
    pins = tuple(
        Pin(name=name, uri=uri, sha256=sha256, digest=digests[name])
        for name, (uri, sha256) in _addresses(model.spec).items()
        if name in digests
    )
    places = [_places(pins)]
    earlier: list[FetchedSource] = []
    for source in (before, *before.earlier):
        if source.pins and _places(source.pins) not in places:
            places.append(_places(source.pins))
            earlier.append(FetchedSource(pins=source.pins, refresh=source.refresh))
    return SourceState(
        pins=pins,
        refresh=refresh,
        earlier=tuple(earlier[:_KEPT_SOURCES]),
        refreshes=before.refreshes + (refresh != before.refresh),
        requested=_read_refresh(model) or before.requested if refresh else before.requested,
        looked_at=whole_second(now),
    )


def refresh_failed(
    model: InferenceModel, now: datetime, source: SourceState, failure: JobFailure
) -> SourceState:
    """Return the state after a failed refresh, which keeps the content fetched before."""
    return source.model_copy(
        update={
            "requested": _read_refresh(model) or source.requested,
            "refreshes": source.refreshes + 1,
            "looked_at": whole_second(now),
            "refreshing": None,
            "failure": failure,
        }
    )


def _places(pins: Iterable[Pin]) -> tuple[tuple[str, str, str], ...]:
    return tuple((pin.name, *_address(pin)) for pin in pins)


def _addresses(spec: InferenceModelSpec) -> dict[str, tuple[str, str]]:
    addresses = {MODEL: (spec.source.uri, (spec.source.sha256 or "").lower())}
    if spec.parity.samples:
        addresses["samples"] = (spec.parity.samples.uri, "")
    if spec.quantization and spec.quantization.calibration:
        addresses["calibration"] = (spec.quantization.calibration.uri, "")
    for name, step in steps_of(spec).items():
        addresses[name] = (step.uri, (step.sha256 or "").lower())
    return addresses


def _address(pin: Pin) -> tuple[str, str]:
    return pin.uri, pin.sha256
