"""What a model's addresses stand for: what was fetched first, until a refresh is asked for.

An address may hold other bytes tomorrow. Without a digest in the spec, a lost artefact, a new runtime
image or a revert would then serve a model that nobody has asked for, so digests are pinned once they
are known: in the status for the spec of now, in the revisions for those that it may return to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.inference_model_status import Pin, Prepared, SourceState
from enginewright.api.job_failure import JobFailure
from enginewright.api.scalars import duration
from enginewright.manifests.labels import REFRESH
from enginewright.plan.types import Facts

MODEL: Final = "model"
_LONGEST: Final = 256  # characters of an annotation that are kept


@dataclass(frozen=True)
class Source:
    """What a preparation is to fetch."""

    pinned: Mapping[str, str] = field(default_factory=dict)  # digests by name; absent: any
    refresh: str = ""  # the refresh that asks for it; empty: none


def known_source(facts: Facts) -> Source:
    """Return what was fetched from the spec's addresses, by this spec or one that it returns to."""
    wanted = _addresses(facts.model.spec)
    status = facts.model.status
    kept = [
        each.kept.source
        for each in sorted(facts.revisions, key=lambda each: -each.number)
        if each.kept and each.kept.source
    ]
    for each in (*([status.source] if status.source else ()), *kept):
        pins = {pin.name: pin.digest for pin in each.pins if _address(pin) == wanted.get(pin.name)}
        if MODEL in pins:
            return Source(pins, each.refresh)
    return Source()


def asked_refresh(facts: Facts) -> str | None:
    """Return the refresh that the annotation asks for; None: none that was not acted on."""
    asked = facts.model.metadata.annotations.get(REFRESH, "")[:_LONGEST]
    acted_on = facts.model.status.source.requested if facts.model.status.source else ""
    return asked if asked and asked != acted_on else None


def due_refresh(facts: Facts) -> str | None:
    """Return the refresh that spec.source.refreshInterval asks for now; None: none."""
    wait = seconds_to_refresh(facts)
    if wait is None or wait > 0:
        return None
    looked_at = facts.model.status.source.looked_at if facts.model.status.source else None
    return f"due {looked_at.isoformat()}" if looked_at else None


def seconds_to_refresh(facts: Facts) -> float | None:
    """Return the seconds until a refresh is due; None: never."""
    interval = duration(facts.model.spec.source.refresh_interval)
    source = facts.model.status.source
    if not interval or source is None or source.looked_at is None:
        return None
    return (source.looked_at + interval - facts.now) / timedelta(seconds=1)


def fetched(facts: Facts, prepared: Prepared, data: Mapping[str, str], refresh: str) -> SourceState:
    """Return what is known once a model was prepared; `data`: digests of samples and the like."""
    before = facts.model.status.source
    digests = {MODEL: prepared.model_digest, **data}
    return SourceState(
        pins=tuple(
            Pin(name=name, uri=uri, sha256=sha256, digest=digests[name])
            for name, (uri, sha256) in _addresses(facts.model.spec).items()
            if name in digests
        ),
        refresh=refresh,
        requested=asked_refresh(facts) or (before.requested if before else ""),
        looked_at=_second(facts.now),
    )


def given_up(facts: Facts, source: SourceState, failure: JobFailure) -> SourceState:
    """Return what is known once a refresh has failed: what was fetched before it stays."""
    return source.model_copy(
        update={
            "requested": asked_refresh(facts) or source.requested,
            "looked_at": _second(facts.now),
            "refreshing": None,
            "failure": failure,
        }
    )


def _second(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)


def _addresses(spec: InferenceModelSpec) -> dict[str, tuple[str, str]]:
    """Return address and given digest of each thing that may change, by name."""
    found = {MODEL: (spec.source.uri, (spec.source.sha256 or "").lower())}
    if spec.parity.samples:
        found["samples"] = (spec.parity.samples.uri, "")
    if spec.quantization and spec.quantization.calibration:
        found["calibration"] = (spec.quantization.calibration.uri, "")
    return found


def _address(pin: Pin) -> tuple[str, str]:
    return pin.uri, pin.sha256
