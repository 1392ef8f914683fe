"""The steps of one model that can be resolved, in the order in which they would be done.

The operator decides one step at a time, from the result of the last one. Where that is not known
yet, such as the digest of a model that was not fetched, a later step has no name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import EngineReference, Prepared
from enginewright.contract.engines import whole_only
from enginewright.contract.keys import prepared_key
from enginewright.contract.task import ENGINE_STAGES, LOOKUP_STAGE, PREPARE_STAGES
from enginewright.observed.deployments import DeploymentView, deployment_view
from enginewright.plan.engines import BuildFacts, plan_engine
from enginewright.plan.engines_wanted import Engines, wanted_engines
from enginewright.plan.prepare import PrepareOutcome
from enginewright.plan.refresh import prepare_and_refresh
from enginewright.plan.resolve import Target
from enginewright.plan.rollout import roll_out, wanted_snapshot
from enginewright.plan.types import Facts

from enginewright_cli.plan.differences import of_revisions
from enginewright_cli.plan.result import Action, Difference, PlanStep, Refusal

_UNKNOWN: Final = "0" * 64  # stands for a key that is not known yet
_BY_DIGEST: Final = "if the source is what its digest says, and one file"
_AS_BEFORE: Final = "if the source still is what it was"
_UNLESS: Final = "a new one, unless the source has the same bytes as before"


@dataclass(frozen=True)
class _Made:
    """The prepared model that engines and pods would be made from."""

    prepared: Prepared
    is_known: bool  # its key is that of the store
    assumption: str = ""  # under which it is; empty: none


class Steps:
    """All steps of a model that can be resolved."""

    def __init__(self, facts: Facts, target: Target, digest: str | None) -> None:
        """Find them.

        Args:
            facts: of the model as it would be right after it was applied.
            target: what it comes to.
            digest: of the model that is there, as it was prepared from the same source; None: the
                source is another one, or none has been prepared.
        """
        self._facts = facts
        self._target = target
        self._earlier = digest
        self._refusals: list[Refusal] = []
        self.revision: str | None = None
        self.differences: tuple[Difference, ...] = ()
        preparing = prepare_and_refresh(facts, target)
        outcome = preparing.outcome
        self._target = preparing.target
        made = self._made(outcome)
        self.steps: tuple[PlanStep, ...] = (
            *self._claim(),
            self._prepare(outcome, made),
            *_refresh(preparing.refresh),
            *(
                PlanStep(
                    action="delete", kind=each.kind, name=each.name, message="for earlier inputs"
                )
                for each in outcome.delete
            ),
        )
        if self._refusals:
            return
        engines = wanted_engines(facts, target, made.prepared)
        self.steps += tuple(self._engines(engines, made))
        if not self._refusals:
            self.steps += tuple(self._rollout(engines, made))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Return why it would not be brought up."""
        return tuple(self._refusals)

    def verdict(self) -> Literal["refused", "changes", "unchanged"]:
        """Return what all of it comes to."""
        if self._refusals:
            return "refused"
        same = all(each.action in ("reuse", "keep") for each in self.steps)
        return "unchanged" if same else "changes"

    def _refuse(self, reason: str, message: str) -> None:
        self._refusals.append(Refusal(reason=reason, message=message))

    def _claim(self) -> Iterator[PlanStep]:
        claim = self._facts.config.store
        if self._facts.store is None:
            message = f"{claim.size}, {claim.access_mode}: the namespace's store"
            yield PlanStep(
                action="make", kind="PersistentVolumeClaim", name=claim.claim, message=message
            )

    def _prepare(self, outcome: PrepareOutcome, made: _Made) -> PlanStep:
        if outcome.prepared:
            key = outcome.prepared.key
            return PlanStep(action="reuse", kind="Prepared", key=key, message="prepared already")
        name = outcome.preparation.job if outcome.preparation else None
        if outcome.failure and outcome.failure.lasting:
            failure = outcome.failure
            self._refuse(failure.reason, failure.sentence)
            message = f"failed in stage {failure.stage}, and is not tried again as it is"
            return PlanStep(action="refuse", kind="Job", name=name, message=message)
        begins = bool(outcome.apply)
        guess = f"the key: {made.assumption}" if made.assumption else ""
        return PlanStep(
            action="make" if begins else "wait",
            kind="Job",
            name=name,
            key=made.prepared.key if made.is_known else None,
            stages=PREPARE_STAGES,
            message=guess if begins else outcome.message,
        )

    def _digest(self) -> tuple[str | None, str]:
        """Return the digest that the model has, and under which assumption.

        None: nobody can say, or the key holds digests of data too, which change by themselves.
        """
        recipe = self._target.recipe
        if recipe.samples_uri or (recipe.quantization and recipe.quantization.calibration):
            return None, ""
        if self._earlier:
            return self._earlier, _AS_BEFORE
        pinned = self._facts.model.spec.source.sha256
        return pinned, _BY_DIGEST if pinned else ""

    def _made(self, outcome: PrepareOutcome) -> _Made:
        if outcome.prepared:
            return _Made(outcome.prepared, is_known=True)
        digest, assumption = self._digest()
        key = prepared_key(digest, self._target.recipe, {}) if digest else _UNKNOWN
        known = self._facts.model.status.prepared
        prepared = Prepared(
            inputs_hash=self._target.artifact_hash,
            key=key,
            model_digest=digest or _UNKNOWN,
            opset=0,
            ir_version=0,
            nodes=0,
            size_bytes=0,
            golden_output_bytes=known.golden_output_bytes if known else None,
        )
        return _Made(prepared, is_known=digest is not None, assumption=assumption)

    def _engines(self, engines: Engines, made: _Made) -> Iterator[PlanStep]:
        if engines.failure:
            self._refuse(engines.failure.reason, engines.failure.sentence)
        wanted = {each["metadata"]["name"]: each for each in engines.apply}
        for reference in engines.references:
            there = self._facts.engines.get(reference.name)
            if reference.name in wanted:
                engine = InferenceEngine.model_validate(wanted[reference.name])
                yield from self._built(engine, reference, made, exists=there is not None)
            elif there is not None:
                yield self._there(there)

    def _there(self, engine: InferenceEngine) -> PlanStep:
        status = engine.status
        ready = next((each for each in status.conditions if each.type == "Ready"), None)
        action: Action = "reuse" if status.engine else "wait"
        if status.failure and status.failure.lasting and not status.engine:
            action = "refuse"
        return PlanStep(
            action=action,
            kind=InferenceEngine.kind,
            name=engine.metadata.name,
            class_name=engine.spec.class_name,
            key=engine.spec.key,
            message="built already" if status.engine else ready.message if ready else "under way",
        )

    def _built(
        self, engine: InferenceEngine, reference: EngineReference, made: _Made, *, exists: bool
    ) -> Iterator[PlanStep]:
        """Yield the engine and the Jobs that the operator would make for it."""
        known = engine.metadata.name if made.is_known else None
        key = engine.spec.key if made.is_known else None
        of = engine.spec.class_name
        limit = whole_only(engine.spec.backend)
        yield PlanStep(
            action="change" if exists else "make",
            kind=InferenceEngine.kind,
            name=known,
            class_name=of,
            key=key,
            message=f"of the whole model or none, whatever spec.fallback allows: {limit}"
            if limit
            else "",
        )
        facts = BuildFacts(engine, self._facts.config, self._facts.now, references=(reference,))
        begun = plan_engine(facts)
        (job,) = begun.apply
        pod = job["spec"]["template"]["spec"]
        stages = tuple(
            each["name"] for each in (*pod.get("initContainers", ()), *pod["containers"])
        )
        name = job["metadata"]["name"] if made.is_known else None
        looks = stages == (LOOKUP_STAGE,)
        yield PlanStep(
            action="make",
            kind="Job",
            name=name,
            stages=stages,
            message="looks in the store before it requests a device" if looks else _device(engine),
            class_name=of,
            key=key,
        )
        if looks:
            yield PlanStep(
                action="make",
                kind="Job",
                stages=ENGINE_STAGES,
                message=f"if the store does not have it; {_device(engine)}",
                class_name=of,
            )

    def _rollout(self, engines: Engines, made: _Made) -> Iterator[PlanStep]:
        keys = self._engine_keys(engines)
        snapshot = wanted_snapshot(self._facts, self._target, made.prepared, keys)
        self.revision = snapshot.revision() if made.is_known else None
        self.differences = tuple(of_revisions(self._facts, snapshot, keys_known=made.is_known))
        paused = self._facts.model.spec.rollout.paused
        rollout = roll_out(self._facts, snapshot)
        there = {each.name: each for each in self._facts.deployments}
        for each in rollout.apply:
            if each["kind"] == "Deployment":
                wanted = deployment_view(each)
                yield self._deployment(wanted, there.get(wanted.name), made, paused)
        classes = {each.name for each in snapshot.classes}
        for name, known in there.items():
            if known.accelerator_class not in classes:
                yield PlanStep(
                    action="keep" if paused else "delete",
                    kind="Deployment",
                    name=name,
                    class_name=known.accelerator_class,
                    message="once the new revision serves",
                )
        if paused and not rollout.apply:
            yield PlanStep(action="wait", kind="Deployment", message="spec.rollout.paused holds it")

    def _deployment(
        self, wanted: DeploymentView, there: DeploymentView | None, made: _Made, paused: bool
    ) -> PlanStep:
        revision, replicas = wanted.revision, wanted.desired
        now = there.desired if there else 0
        same = there is not None and there.revision == revision
        message = "spec.rollout.paused holds what serves" if paused else ""
        if there is not None and not (same and now == replicas):
            scale = "" if now == replicas else f"{now} → {replicas} pods"
            moved = "" if same or paused else f"revision {there.revision} → "
            to = "" if same or paused else (revision if made.is_known else self._new())
            message = ", ".join(filter(None, (f"{moved}{to}", scale, message)))
        elif there is None:
            message = f"{replicas} pods" if replicas != 1 else "1 pod"
        action: Action = "make" if there is None else "keep"
        if there is not None and not (same and now == replicas):
            action = "change"
        if action == "keep" and same and not paused:
            message = made.assumption
        return PlanStep(
            action=action,
            kind="Deployment",
            name=wanted.name,
            class_name=wanted.accelerator_class,
            message=message,
        )

    def _new(self) -> str:
        """Return what is said of a revision that nobody knows yet."""
        return _UNLESS if self._facts.model.status.prepared else "a new one"

    def _engine_keys(self, engines: Engines) -> Mapping[str, str]:
        """Return the keys of all engines, built or not, by class."""
        keys = {each["metadata"]["name"]: str(each["spec"]["key"]) for each in engines.apply}
        for each in engines.references:
            if there := self._facts.engines.get(each.name):
                keys[each.name] = there.spec.key
        return {
            each.class_name: keys[each.name] for each in engines.references if each.name in keys
        }


def _refresh(outcome: PrepareOutcome | None) -> Iterator[PlanStep]:
    """Yield the Job that fetches the sources again."""
    if outcome is not None:
        yield PlanStep(
            action="make" if outcome.apply else "wait",
            kind="Job",
            name=outcome.preparation.job if outcome.preparation else None,
            stages=PREPARE_STAGES,
            message="fetches again while the old revision serves; what has changed is then rolled out",
        )


def _device(engine: InferenceEngine) -> str:
    resource = engine.spec.build.resource_name
    return f"takes one {resource}" if resource else "takes no device"
