"""The Jobs that prepare a model: what one does, which of them still run for outdated inputs, and the next attempt."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import Published
from enginewright_contract.task import PREPARE_STAGES, PrepareTask

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.pods import JobTemplate
from enginewright.manifests.job_limits import ENDED_KEPT
from enginewright.manifests.labels import COMPONENT
from enginewright.manifests.names import prepare_job_name
from enginewright.manifests.placement import merge_templates, placement_hash
from enginewright.manifests.prepare_job import PrepareJob, prepare_job
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.attempts import Work
from enginewright.plan.prepare.shared import record_hash
from enginewright.plan.resolve.images import architecture_of
from enginewright.plan.resolve.recipe import steps_sha256
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.types import Config, Facts, ObjectRef


@dataclass(frozen=True)
class PrepareJobs:
    """The Jobs that prepare a model, and the model's pods."""

    namespace: str
    by_name: Mapping[str, JobView]
    pods: Collection[PodView]

    @classmethod
    def of(cls, facts: Facts) -> "PrepareJobs":
        """Return those of a model."""
        own = {job.name: job for job in facts.jobs if job.label(COMPONENT) == "prepare"}
        return cls(facts.model.metadata.namespace, own, facts.pods)

    def reference(self, name: str) -> ObjectRef:
        """Return the reference by which a Job is deleted."""
        return ObjectRef("batch/v1", "Job", self.namespace, name)

    def list_outdated(self, keep: str = "") -> tuple[ObjectRef, ...]:
        """Return the Jobs that still run for outdated inputs."""
        done = {pod.job for pod in self.pods if _is_last(pod)}  # before the Job's status shows it
        return tuple(
            self.reference(name)
            for name, job in sorted(self.by_name.items())
            if name != keep and not job.ended and name not in done
        )

    def list_done(self, keep: str = "") -> tuple[ObjectRef, ...]:
        """Return the Jobs that have published and have nothing left to do, and those that ended before the last ones.

        In the first, stages may follow that have nothing to do, or a mesh's proxy that would go on for ever. The last ones
        have what a spec needs that is set back, and say how old a loss is that a pod reports.
        """
        ended = sorted((job for job in self.by_name.values() if job.ended), key=_find_end)
        superseded = {job.name for job in ended[:-ENDED_KEPT]}
        idle = {pod.job for pod in self.pods if _is_idle(pod)}
        return tuple(
            self.reference(name)
            for name, job in sorted(self.by_name.items())
            if name != keep and (name in superseded or (name in idle and not job.ended))
        )

    def first_attempt(self, work: Work[Published], *, lost: bool) -> int:
        """Return the first attempt: after those whose artefact was `lost`, else 1."""
        published = {pod.job for pod in self.pods if read_published(pod)}
        attempt = 1
        while lost and (job := self.by_name.get(work.name(attempt))):
            if job.outcome != "Complete" and job.name not in published:
                break
            attempt += 1
        return attempt

    def find_publication(self) -> str:
        """Return when a Job last published the artefact or found it, even if the Job failed afterwards."""
        ended = [job.ended_at for job in self.by_name.values() if job.outcome == "Complete"]
        reported = [pods.find_publication(pod) for pod in self.pods if pod.job in self.by_name]
        return max((*ended, *reported), default="")


def prepare_work(facts: Facts, target: Target) -> Work[Published]:
    """Return the work of preparing the target."""
    model = facts.model
    return Work(
        stages=PREPARE_STAGES,
        name=partial(prepare_job_name, model.metadata.name, target.job_hash),
        result=read_published,
        placement=placement_hash(_template(model.spec, facts.config)),
        store=facts.config.store.describe(model.metadata.namespace, facts.store),
        overdue=(Reason.TIMEOUT, "the prepare Job exceeded spec.build.timeout in stage {stage}"),
        may_end_early=True,
    )


def read_published(pod: PodView) -> Published | None:
    """Return what a Job's pod has published so far."""
    return next((report.published for report in pods.reports(pod) if report.published), None)


def _is_last(pod: PodView) -> bool:
    """Return whether the Job creates no further pod after this one."""
    failure = pods.failure(pod) if pod.phase == "Failed" else None
    permanent = failure is not None and failure.exit_code == ExitCode.PERMANENT
    return permanent or pod.phase == "Succeeded" or read_published(pod) is not None


def _is_idle(pod: PodView) -> bool:
    """Return whether a pod that goes on has published, and not in its last stage just now."""
    last = pod.container(PREPARE_STAGES[-1])
    goes_on = not pod.leaving and read_published(pod) is not None
    has_ended = last is not None and last.ended is not None
    return goes_on and (not has_ended or pods.outlives(pod, PREPARE_STAGES[-1]))


def _find_end(job: JobView) -> str:
    return job.ended_at


def _template(spec: InferenceModelSpec, config: Config) -> JobTemplate:
    return merge_templates(config.jobs, spec.build.pod_template)


def job_manifest(facts: Facts, target: Target, name: str, shared: str) -> dict[str, Any]:
    """Return the Job to apply; `shared` is the hash of what other models share, if any."""
    spec = facts.model.spec
    return prepare_job(
        facts.model,
        PrepareJob(
            name=name,
            image=target.image,
            pull_policy=facts.config.image_pull_policy,
            pull_secrets=target.pull_secrets,
            store=facts.config.store.access(facts.model.metadata.namespace),
            task=PrepareTask(
                job=name,
                source_uri=spec.source.uri,
                source_sha256=spec.source.sha256,
                steps_sha256=steps_sha256(spec),
                pinned=dict(target.source.pinned),
                fetched=dict(target.source.fetched),
                pipeline=facts.images[target.image].pipeline,
                cluster=facts.bucket_user,
                recipe=target.recipe,
            ),
            deadline_seconds=target.deadline_seconds,
            resources=spec.build.resources.manifest(),
            inputs=target.inputs,
            nodes=target.prepare_nodes,
            template=_template(spec, facts.config),
            assigned_ids=facts.config.openshift,
            architecture=architecture_of(facts.images[target.image], facts.nodes),
            shared_hash=shared,
            record_hash=record_hash(facts.model, facts.config, target),
            images=facts.config.store.images,
            account=spec.pod_template.service_account_name,
            refused_networks=facts.config.refused_networks,
        ),
    )
