"""The steps of one model that can be resolved, in the order in which they would be done.

The operator decides one step at a time, from the result of the previous one. Where that is not
known yet, such as the digest of a model that was not fetched, later steps have no name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import EngineReference, Prepared
from enginewright.manifests.names import deployment_name
from enginewright.observed.deployments import DeploymentView, deployment_view
from enginewright.plan.engines.build import BuildFacts
from enginewright.plan.engines.engine import plan_engine
from enginewright.plan.engines.interim import interim_of
from enginewright.plan.engines.status import ready_condition
from enginewright.plan.engines.wanted import Engines, request_engines
from enginewright.plan.prepare.prepare import PrepareOutcome
from enginewright.plan.prepare.refresh import prepare_and_refresh
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.rollout.revisions import choose_snapshot
from enginewright.plan.rollout.rollout import roll_out
from enginewright.plan.types import Facts
from enginewright_contract.engines import whole_only
from enginewright_contract.keys import compute_prepared_key
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE, PREPARE_STAGES

from enginewright_cli.plan.differences import of_revisions
from enginewright_cli.plan.result import Action, Difference, PlanStep, Refusal

_UNKNOWN: Final = "0" * 64  # placeholder for a key that is not known yet
_DIGEST_MATCHES: Final = "if the source is one file and matches its digest"
_SOURCE_UNCHANGED: Final = "if the source is unchanged"
_NEW_UNLESS_IDENTICAL: Final = "a new one, unless the source is byte-identical"


@dataclass(frozen=True)
class _ExpectedModel:
    """The prepared model that engines would be built from and pods would serve."""

    prepared: Prepared
    is_known: bool  # whether its key is known
    assumption: str = ""  # under which the key is known; empty: none


class Steps:
    """All steps of a model that can be resolved."""

    def __init__(self, facts: Facts, target: Target, digest: str | None) -> None:
        """Derive the steps; `digest` is that of the existing prepared model, if it has the same source."""
        self._facts = facts
        self._target = target
        self._earlier_digest = digest
        self._refusals: list[Refusal] = []
        self.revision: str | None = None
        self.differences: tuple[Difference, ...] = ()
        preparing = prepare_and_refresh(facts, target)
        outcome = preparing.outcome
        self._target = preparing.target
        expected = self._expect_model(outcome)
        self.steps: tuple[PlanStep, ...] = (
            *self._claim(),
            self._prepare(outcome, expected),
            *_refresh(preparing.refresh),
            *(
                PlanStep(
                    action="delete", kind=ref.kind, name=ref.name, message="for earlier inputs"
                )
                for ref in outcome.delete
            ),
        )
        if self._refusals:
            return
        engines = request_engines(facts, target, expected.prepared)
        self.steps += tuple(self._engines(engines, expected))
        if not self._refusals:
            self.steps += tuple(self._interim(engines, expected))
            self.steps += tuple(self._rollout(engines, expected))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Return why the model would not be deployed."""
        return tuple(self._refusals)

    def verdict(self) -> Literal["refused", "changes", "unchanged"]:
        """Return the verdict over all steps."""
        if self._refusals:
            return "refused"
        same = all(step.action in ("reuse", "keep") for step in self.steps)
        return "unchanged" if same else "changes"

    def _refuse(self, reason: str, message: str) -> None:
        self._refusals.append(Refusal(reason=reason, message=message))

    def _claim(self) -> Iterator[PlanStep]:
        claim = self._facts.config.store
        if self._facts.store is None and claim.bucket is None:
            message = f"{claim.size}, {claim.access_mode}: the namespace's store"
            yield PlanStep(
                action="make", kind="PersistentVolumeClaim", name=claim.claim, message=message
            )

    def _prepare(self, outcome: PrepareOutcome, expected: _ExpectedModel) -> PlanStep:
        if outcome.prepared:
            key = outcome.prepared.key
            return PlanStep(action="reuse", kind="Prepared", key=key, message="already prepared")
        name = outcome.preparation.job if outcome.preparation else None
        if outcome.failure and outcome.failure.lasting:
            failure = outcome.failure
            self._refuse(failure.reason, failure.sentence)
            message = f"failed in stage {failure.stage}; not retried with the same inputs"
            return PlanStep(action="refuse", kind="Job", name=name, message=message)
        starts = bool(outcome.apply)
        assumption = f"key valid {expected.assumption}" if expected.assumption else ""
        return PlanStep(
            action="make" if starts else "wait",
            kind="Job",
            name=name,
            key=expected.prepared.key if expected.is_known else None,
            stages=PREPARE_STAGES,
            message=assumption if starts else outcome.message,
        )

    def _digest(self) -> tuple[str | None, str]:
        """Return the digest that the model will have, if its key depends on no data, and the assumption."""
        recipe = self._target.recipe
        calibrated = recipe.quantization and recipe.quantization.calibration
        if recipe.samples_uri or recipe.processing or calibrated:
            return None, ""
        if self._earlier_digest:
            return self._earlier_digest, _SOURCE_UNCHANGED
        pinned = self._facts.model.spec.source.sha256
        return pinned, _DIGEST_MATCHES if pinned else ""

    def _expect_model(self, outcome: PrepareOutcome) -> _ExpectedModel:
        if outcome.prepared:
            return _ExpectedModel(outcome.prepared, is_known=True)
        digest, assumption = self._digest()
        key = compute_prepared_key(digest, self._target.recipe, {}) if digest else _UNKNOWN
        current = self._facts.model.status.prepared
        prepared = Prepared(
            inputs_hash=self._target.artifact_hash,
            key=key,
            model_digest=digest or _UNKNOWN,
            opset=0,
            ir_version=0,
            nodes=0,
            size_bytes=0,
            golden_output_bytes=current.golden_output_bytes if current else None,
        )
        return _ExpectedModel(prepared, is_known=digest is not None, assumption=assumption)

    def _engines(self, engines: Engines, expected: _ExpectedModel) -> Iterator[PlanStep]:
        if engines.failure:
            self._refuse(engines.failure.reason, engines.failure.sentence)
        new = {entry["metadata"]["name"]: entry for entry in engines.apply}
        for reference in engines.references:
            existing = self._facts.engines.get(reference.name)
            if reference.name in new:
                engine = InferenceEngine.model_validate(new[reference.name])
                yield from self._build(engine, reference, expected, exists=existing is not None)
            elif existing is not None:
                yield self._existing_engine(existing)

    def _existing_engine(self, engine: InferenceEngine) -> PlanStep:
        status = engine.status
        ready = ready_condition(status)
        action: Action = "reuse" if status.engine else "wait"
        if status.failure and status.failure.lasting and not status.engine:
            action = "refuse"
        return PlanStep(
            action=action,
            kind=InferenceEngine.kind,
            name=engine.metadata.name,
            class_name=engine.spec.class_name,
            key=engine.spec.key,
            message="already built" if status.engine else ready.message if ready else "in progress",
        )

    def _build(
        self,
        engine: InferenceEngine,
        reference: EngineReference,
        expected: _ExpectedModel,
        *,
        exists: bool,
    ) -> Iterator[PlanStep]:
        name = engine.metadata.name if expected.is_known else None
        key = engine.spec.key if expected.is_known else None
        class_name = engine.spec.class_name
        limit = whole_only(engine.spec.backend)
        yield PlanStep(
            action="change" if exists else "make",
            kind=InferenceEngine.kind,
            name=name,
            class_name=class_name,
            key=key,
            message=f"must contain the whole model, whatever spec.fallback allows: {limit}"
            if limit
            else "",
        )
        facts = BuildFacts(engine, self._facts.config, self._facts.now, references=(reference,))
        build = plan_engine(facts)
        (job,) = build.apply
        pod = job["spec"]["template"]["spec"]
        stages = tuple(
            item["name"] for item in (*pod.get("initContainers", ()), *pod["containers"])
        )
        name = job["metadata"]["name"] if expected.is_known else None
        is_lookup = stages == (LOOKUP_STAGE,)
        yield PlanStep(
            action="make",
            kind="Job",
            name=name,
            stages=stages,
            message="checks the store before it requests a device"
            if is_lookup
            else _device(engine),
            class_name=class_name,
            key=key,
        )
        if is_lookup:
            yield PlanStep(
                action="make",
                kind="Job",
                stages=ENGINE_STAGES,
                message=f"if the store does not contain it; {_device(engine)}{_describe_comparison(engine)}",
                class_name=class_name,
            )

    def _interim(self, engines: Engines, expected: _ExpectedModel) -> Iterator[PlanStep]:
        interim = interim_of(self._facts, self._target, expected.prepared, engines)
        if interim is None:
            return
        existing = {
            deployment.accelerator_class: deployment.name for deployment in self._facts.deployments
        }
        model = self._facts.model.metadata.name
        for name in sorted(interim.classes):
            begun: Action = "keep" if name in existing else "make"
            why = f": {interim.why_not}" if interim.why_not else ""
            yield PlanStep(
                action="wait" if interim.why_not else begun,
                kind="Deployment",
                name=existing.get(name, deployment_name(model, name)),
                class_name=name,
                message=f"serves on backend {interim.backend} until its engine is built{why}",
            )

    def _rollout(self, engines: Engines, expected: _ExpectedModel) -> Iterator[PlanStep]:
        keys = self._engine_keys(engines)
        snapshot, _ = choose_snapshot(self._facts, self._target, expected.prepared, engines, keys)
        self.revision = snapshot.revision() if expected.is_known else None
        self.differences = tuple(of_revisions(self._facts, snapshot, keys_known=expected.is_known))
        paused = self._facts.model.spec.rollout.paused
        rollout = roll_out(self._facts, snapshot)
        existing = {view.name: view for view in (*self._facts.deployments, *self._facts.canaries)}
        for entry in rollout.apply:
            if entry["kind"] == "Deployment":
                new = deployment_view(entry)
                yield self._deployment(new, existing.get(new.name), expected, paused)
        classes = {device_class.name for device_class in snapshot.classes}
        for name, deployment in existing.items():
            if deployment.accelerator_class not in classes and deployment.is_serving:
                yield PlanStep(
                    action="keep" if paused else "delete",
                    kind="Deployment",
                    name=name,
                    class_name=deployment.accelerator_class,
                    message="once the new revision serves",
                )
        if paused and not rollout.apply:
            yield PlanStep(
                action="wait", kind="Deployment", message="paused by spec.rollout.paused"
            )

    def _deployment(
        self,
        new: DeploymentView,
        existing: DeploymentView | None,
        expected: _ExpectedModel,
        paused: bool,
    ) -> PlanStep:
        revision, replicas = new.revision, new.desired
        now = existing.desired if existing else 0
        same = existing is not None and existing.revision == revision
        message = "spec.rollout.paused keeps the serving revision" if paused else ""
        if existing is not None and not (same and now == replicas):
            scale = "" if now == replicas else f"{now} → {replicas} pods"
            moved = "" if same or paused else f"revision {existing.revision} → "
            to = "" if same or paused else (revision if expected.is_known else self._new())
            message = ", ".join(filter(None, (f"{moved}{to}", scale, message)))
        elif existing is None:
            message = f"{replicas} pods" if replicas != 1 else "1 pod"
            if new.is_canary:
                name = revision if expected.is_known else self._new()
                message += f" of revision {name}, to replace the serving ones once they pass"
        action: Action = "make" if existing is None else "keep"
        if existing is not None and not (same and now == replicas):
            action = "change"
        if action == "keep" and same and not paused:
            message = expected.assumption
        return PlanStep(
            action=action,
            kind="Deployment",
            name=new.name,
            class_name=new.accelerator_class,
            message=message,
        )

    def _new(self) -> str:
        return _NEW_UNLESS_IDENTICAL if self._facts.model.status.prepared else "a new one"

    def _engine_keys(self, engines: Engines) -> Mapping[str, str]:
        keys = {entry["metadata"]["name"]: str(entry["spec"]["key"]) for entry in engines.apply}
        for reference in engines.references:
            if engine := self._facts.engines.get(reference.name):
                keys[reference.name] = engine.spec.key
        return {
            reference.class_name: keys[reference.name]
            for reference in engines.references
            if reference.name in keys
        }


def _refresh(outcome: PrepareOutcome | None) -> Iterator[PlanStep]:
    if outcome is not None:
        yield PlanStep(
            action="make" if outcome.apply else "wait",
            kind="Job",
            name=outcome.preparation.job if outcome.preparation else None,
            stages=PREPARE_STAGES,
            message="fetches the sources again while the old revision serves; changes are then rolled out",
        )


def _describe_comparison(engine: InferenceEngine) -> str:
    """Return text to append: the backends that the Job compares with the engine."""
    others = engine.spec.build.benchmark_backends
    return f"; compares it with {', '.join(others)}" if others else ""


def _device(engine: InferenceEngine) -> str:
    build = engine.spec.build
    resource = build.resource_name or (build.device and build.device.device_class_name)
    return f"requests one {resource}" if resource else "requests no device"
