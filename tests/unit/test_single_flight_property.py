"""In any order of events, no two prepare Jobs do the same, and every model is prepared or has failed.

Hypothesis plays users, the cluster and crashes of the operator; after every step the operator works until nothing
changes.
"""

from collections import Counter
from typing import Final

from enginewright.observed.jobs import job_view
from enginewright_contract.reasons import Reason
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from tests.support.effort import examples
from tests.support.many_models import SOURCE, ManyModels
from tests.support.plan_objects import Json, publish_model

NAMES: Final = st.sampled_from(["a", "b", "c", "d", "e"])
SPECS: Final[list[Json]] = [
    {},
    {"source": {"uri": SOURCE, "sha256": "a" * 64}},
    {"build": {"timeout": "2h"}},
]
STAGES: Final = st.sampled_from(["fetch", "validate", "publish"])
REASONS: Final = st.sampled_from(
    [Reason.INVALID_MODEL, Reason.SOURCE_UNREACHABLE, Reason.INTERNAL_ERROR]
)
_ENOUGH: Final = 60  # rounds in which every model must come to its end


def jobs_run(machine: "Namespace") -> bool:
    return bool(machine.world.running_jobs())


class Namespace(RuleBasedStateMachine):
    """The models of a namespace, and all that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ManyModels()

    @rule(name=NAMES, spec=st.sampled_from(SPECS))
    def apply(self, name: str, spec: Json) -> None:
        self.world.apply(name, **spec)

    @rule(names=st.sets(NAMES), spec=st.sampled_from(SPECS))
    def apply_at_once(self, names: set[str], spec: Json) -> None:
        self.world.apply(*sorted(names), **spec)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if self.world.find("InferenceModel", name):
            self.world.delete(name)

    @precondition(jobs_run)
    @rule(which=st.integers(0, 4), stage=STAGES)
    def runs(self, which: int, stage: str) -> None:
        self.world.stage_runs(stage, self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 4))
    def succeeds(self, which: int) -> None:
        self.world.job_succeeds(publish_model(), of=self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 4), reason=REASONS)
    def fails(self, which: int, reason: Reason) -> None:
        self.world.job_fails(reason, "validate", of=self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 4))
    def job_deleted(self, which: int) -> None:
        self.world.job_is_deleted(self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 4))
    def suspend_or_resume(self, which: int) -> None:
        job = self.world.get("Job", self._job(which))
        job["spec"]["suspend"] = not job["spec"].get("suspend")
        self.world.kube.count_change(job)
        self.world.settle()

    @rule(minutes=st.sampled_from([1, 10, 90]))
    def time_passes(self, minutes: int) -> None:
        self.world.after(minutes=minutes)

    @rule(writes=st.integers(0, 6))
    def a_write_fails(self, writes: int) -> None:
        self.world.kube.refused_after = writes

    @rule()
    def restart(self) -> None:
        self.world.restart().settle()

    @invariant()
    def one_job_for_each(self) -> None:
        views = (job_view(job) for job in self.world.prepare_jobs())
        # one that a user has suspended may never end, so that the others do without it
        running = [view for view in views if not view.ended and not view.suspended]
        counts = Counter(view.shared_hash for view in running)
        assert not counts or max(counts.values()) == 1 or self._has_resumed(), counts

    def _has_resumed(self) -> bool:
        """Return whether Jobs run that were suspended when others took over."""
        names = [job for job in self.world.running_jobs() if "suspend" in job["spec"]]
        return bool(names)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        leading = set(self.world.leading())
        for entry in self.world.all("InferenceModel"):
            preparation = entry.get("status", {}).get("preparation") or {}
            if leader := preparation.get("leader"):
                led = self.world.status(leader).get("preparation") or {}
                assert leader in leading or led.get("failure"), (entry["metadata"]["name"], leader)

    @override
    def teardown(self) -> None:
        """Have everything go well from now on: every model is prepared, or has failed for good."""
        world = self.world
        world.kube.refused_after = None
        for job in world.running_jobs():
            job["spec"].pop("suspend", None)
            world.kube.count_change(job)
        for _ in range(_ENOUGH):
            world.after(hours=2)
            running = world.running_jobs()
            if not running:
                break
            world.job_succeeds(publish_model(), of=running[0]["metadata"]["name"])
        for entry in world.all("InferenceModel"):
            status = entry["status"]
            failed = (status.get("preparation") or {}).get("failure") or {}
            assert status.get("prepared") or failed.get("lasting"), status
        assert not world.running_jobs()

    def _job(self, which: int) -> str:
        running = self.world.running_jobs()
        return str(running[which % len(running)]["metadata"]["name"])


def test_one_job_for_each_and_an_end_for_all() -> None:
    limits = settings(
        max_examples=examples(25),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Namespace, settings=limits)
