"""What is prepared once for several models: a Job that they share, and results that are recorded for a model to come.

One Job for all models of a namespace that are to be prepared alike: one model leads, the others follow.
The first that needs a Job leads. A model that follows has no Job, and takes over the leader's result or its
permanent failure, which its own Job would repeat. If the leader is gone or gives way, the next one leads at once.
What an address holds may change: a model that is applied once the leader's Job has read it follows only if the
content is known by digest. Otherwise it waits for that Job to end, and reads the address again.

Prepared models of content that the spec names by digest are recorded in the status of the InferenceEngines built from
them, which outlive the model: a model that is applied again needs no Job. The record is found by a hash of everything
that decides what a Job would do and whether it would succeed, the store included.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.keys import content_hash
from enginewright_contract.task import PREPARE_STAGES

from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import Preparation, Prepared
from enginewright.api.job_failure import JobFailure
from enginewright.manifests.job_limits import UNREACHABLE
from enginewright.manifests.placement import merge_templates, placement_hash
from enginewright.manifests.prepare_job import identity_labels
from enginewright.observed.jobs import JobView
from enginewright.observed.preparations import PreparationView
from enginewright.plan.attempts import retry_due
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.resolve.sources import MODEL, digests_in_spec, is_pinned
from enginewright.plan.types import Config, Facts, Leader

PATIENCE: Final = UNREACHABLE  # for which a leader's status may lag behind its Job
_MOST: Final = 4  # records of one InferenceEngine


@dataclass(frozen=True)
class FlightMember:
    """One model, and what of it concerns one shared preparation."""

    name: str
    created: str  # RFC 3339
    preparation: PreparationView | None
    jobs: tuple[JobView, ...] = ()  # of this preparation
    starts: bool = False  # a Job is being created


@dataclass(frozen=True)
class Follows:
    """It waits for the leader's Job to end."""

    leader: Leader
    takes_over: bool  # its result; else this model is prepared afterwards

    @property
    def message(self) -> str:
        """Return what it waits for, as a sentence."""
        name, failed = self.leader.name, self.leader.failure
        message = f"InferenceModel {name} prepares the same model"
        if not self.takes_over:
            message += (
                " from content that may have changed since, so that it is read again afterwards"
            )
        return f"{message}; its last attempt failed: {failed}" if failed else message


@dataclass(frozen=True)
class TakenOver:
    """The leader's result."""

    prepared: Prepared
    # digests of samples, calibration data and steps, by name
    data: Mapping[str, str] = field(default_factory=dict)


def hash_shared(model: InferenceModel, config: Config, target: Target) -> str:
    """Return the hash of all that must be equal for one Job to prepare several models."""
    return content_hash({**job_inputs(model, config, target), "pinned": dict(target.source.pinned)})


def job_inputs(model: InferenceModel, config: Config, target: Target) -> dict[str, Any]:
    """Return what decides what a Job does and whether it succeeds, except the content at the addresses."""
    spec = model.spec
    return {
        "job": target.job_hash,
        "placement": placement_hash(merge_templates(config.jobs, spec.build.pod_template)),
        "identity": identity_labels(spec),
    }


def leaders(members: Iterable[FlightMember], now: datetime) -> tuple[Leader, ...]:
    """Return those whose Jobs prepare, or are about to, the first by creation and name first."""
    ranked = sorted(members, key=lambda member: (member.created, member.name))
    return tuple(leader for member in ranked if (leader := _leader(member, now)))


def follow(
    facts: Facts, target: Target, shared: str, record: Preparation | None
) -> Follows | TakenOver | JobFailure | None:
    """Return what another model's Job means for this one, which needs a Job; None if it creates its own."""
    preparing = facts.leaders.get(shared, ())
    followed = record.leader if record and record.shared_hash == shared else ""
    if leader := next((item for item in preparing if item.name == followed), None):
        return Follows(leader, takes_over=True)
    if followed and (result := _result(facts.followed, target, shared, followed)):
        return result
    if not preparing:
        return None
    first, fixed = preparing[0], is_pinned(facts.model.spec, target.source)
    return Follows(first, takes_over=fixed or not first.has_fetched)


def _leader(member: FlightMember, now: datetime) -> Leader | None:
    preparation = member.preparation
    if member.starts:
        return Leader(member.name, has_fetched=False)
    running = next((job for job in member.jobs if job.proceeds), None)
    if running is not None:
        stage = preparation.stage if preparation and preparation.job == running.name else ""
        has_fetched = stage != PREPARE_STAGES[0]
        return Leader(member.name, has_fetched=has_fetched, failure=_describe_failure(preparation))
    if preparation is None or not preparation.leads:
        return None
    if (failure := preparation.failure) is not None:
        due = retry_due(failure) + PATIENCE
        return (
            Leader(member.name, has_fetched=False, failure=_describe_failure(preparation))
            if now < due
            else None
        )
    ended = next((job.ended_at for job in member.jobs if job.name == preparation.job), "")
    is_recent = ended != "" and now < datetime.fromisoformat(ended) + PATIENCE
    return Leader(member.name, has_fetched=True) if is_recent else None


def _describe_failure(preparation: PreparationView | None) -> str:
    return preparation.failure.sentence if preparation and preparation.failure else ""


def _result(
    followed: InferenceModel | None, target: Target, shared: str, name: str
) -> TakenOver | JobFailure | None:
    """Return the result of the Job of the model that was followed, if there is one and it is known."""
    if followed is None or followed.metadata.name != name or followed.metadata.deletion_timestamp:
        return None
    status = followed.status
    prepared, source, now = status.prepared, status.source, status.preparation
    if prepared and source and prepared.inputs_hash == target.artifact_hash:
        pins = {pin.name: pin.digest for pin in source.pins if pin.name != MODEL}
        return TakenOver(prepared, pins)
    if now and now.shared_hash == shared and now.failure and now.failure.lasting:
        return now.failure
    return None


def record_prepared(
    spec: InferenceModelSpec, record: str, prepared: Prepared, data: Mapping[str, str]
) -> Prepared:
    """Return a prepared model with the hash that it is found by later, if nothing else can be at its addresses.

    `record` is the hash with which its Job was created, as settings may have changed since; `data` the digests of
    what was fetched besides the model, by name.
    """
    # The digest in the spec is that of one file: with external data, or in an archive, the model's differs.
    is_pinned = digests_in_spec(spec) == {MODEL: prepared.model_digest, **data}
    return prepared.model_copy(update={"record_hash": record if is_pinned else ""})


def find_preparation(facts: Facts, target: Target) -> TakenOver | None:
    """Return what an earlier Job has made of the same content, if that is recorded."""
    record = record_hash(facts.model, facts.config, target)
    if not record or target.backend not in COMPILED_BACKENDS:
        return None
    images = facts.config.store.images
    data = digests_in_spec(facts.model.spec) or {}
    digest = data.pop(MODEL, "")
    for engine in facts.find_recorded(record):
        for prepared in engine.status.prepared:
            if (prepared.record_hash, prepared.key) == (record, engine.spec.prepared_key):
                if images and not images.image(prepared.image):
                    return None  # a Job finds the artefact, and pushes its image
                return TakenOver(prepared, data) if prepared.model_digest == digest else None
    return None


def merge_records(
    before: Sequence[Prepared], of_models: Iterable[Prepared], key: str
) -> tuple[Prepared, ...]:
    """Return the records of an engine built from the prepared model `key`: those that it has, and those of models."""
    new = {
        model.record_hash: model for model in of_models if model.record_hash and model.key == key
    }
    kept = {prepared.record_hash: prepared for prepared in before}
    for name, prepared in new.items():
        if name in kept:
            kept[name] = prepared if prepared.image else kept[name]
            continue
        if len(kept) == _MOST:
            unused = next((record for record in kept if record not in new), None)
            if unused is None:
                break
            del kept[unused]
        kept[name] = prepared
    return tuple(kept.values())


def record_hash(model: InferenceModel, config: Config, target: Target) -> str:
    """Return the hash with which a Job for this target is recorded, or "" if it is not.

    A refresh reads the addresses again. Under Recreate a Job shows that the image can be pulled before pods go.
    """
    digests = digests_in_spec(model.spec)
    recreates = model.spec.rollout.strategy == "Recreate"
    if target.source.refresh or recreates or digests is None:
        return ""
    store = config.store.access(model.metadata.namespace).place
    return content_hash({**job_inputs(model, config, target), "digests": digests, "store": store})
