"""Whatever happens in two namespaces that share a store: every model comes to its end, and none waits for nothing.

As in a single namespace, Hypothesis plays users, the cluster and crashes of the operator.
"""

from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.manifests.labels import MAKES
from enginewright.observed.jobs import job_view
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
from tests.support.many_models import SOURCE
from tests.support.plan_objects import Json, published
from tests.unit.test_shared_store import A, B, Group

NAMESPACES: Final = st.sampled_from([A, B])
NAMES: Final = st.sampled_from(["x", "y"])
SPECS: Final[list[Json]] = [{}, {"source": {"uri": SOURCE, "sha256": "a" * 64}}]
REASONS: Final = st.sampled_from([Reason.INVALID_MODEL, Reason.SOURCE_UNREACHABLE])
_ENOUGH: Final = 60  # rounds in which every model must come to its end


def jobs_run(machine: "TwoNamespaces") -> bool:
    return bool(machine.world.running_jobs())


class TwoNamespaces(RuleBasedStateMachine):
    """The models of a group, whose names differ between namespaces, and all that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Group()

    @rule(namespace=NAMESPACES, name=NAMES, spec=st.sampled_from(SPECS))
    def applied(self, namespace: str, name: str, spec: Json) -> None:
        self.world.within(namespace).apply(f"{namespace}-{name}", **spec)

    @rule(name=NAMES)
    def applied_at_once(self, name: str) -> None:
        for each in (A, B):
            self.world.within(each).put(f"{each}-{name}")
        self.world.settle()

    @rule(namespace=NAMESPACES, name=NAMES)
    def deleted(self, namespace: str, name: str) -> None:
        if self.world.within(namespace).find("InferenceModel", f"{namespace}-{name}"):
            self.world.delete(f"{namespace}-{name}")

    @precondition(jobs_run)
    @rule(which=st.integers(0, 3))
    def runs(self, which: int) -> None:
        self.world.stage_runs("fetch", self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 3))
    def succeeds(self, which: int) -> None:
        self.world.job_succeeds(published(), of=self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 3), reason=REASONS)
    def fails(self, which: int, reason: Reason) -> None:
        self.world.job_fails(reason, "validate", of=self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 3))
    def job_deleted(self, which: int) -> None:
        self.world.job_is_deleted(self._job(which))

    @precondition(jobs_run)
    @rule(which=st.integers(0, 3))
    def suspended_or_resumed(self, which: int) -> None:
        job = self.world.get("Job", self._job(which))
        job["spec"]["suspend"] = not job["spec"].get("suspend")
        self.world.kube.changed(job)
        self.world.settle()

    @rule(minutes=st.sampled_from([1, 6, 90]))
    def time_passes(self, minutes: int) -> None:
        self.world.after(minutes=minutes)

    @rule(writes=st.integers(0, 6))
    def a_write_fails(self, writes: int) -> None:
        self.world.kube.refused_after = writes

    @rule()
    def restarted(self) -> None:
        self.world.restart().settle()

    @invariant()
    def who_waits_knows_a_job_or_a_leader(self) -> None:
        makes = {each["metadata"]["annotations"].get(MAKES) for each in self.world.running_jobs()}
        for each in self.world.all("InferenceModel"):
            known = each.get("status", {}).get("preparation") or {}
            ended = known.get("job") or known.get("failure") or known.get("leader")
            assert not known or ended or makes, each["metadata"]["name"]

    @override
    def teardown(self) -> None:
        """Have everything go well from now on: every model is prepared, or has failed for good."""
        world = self.world
        world.kube.refused_after = None
        for job in world.running_jobs():
            job["spec"].pop("suspend", None)
            world.kube.changed(job)
        for _ in range(_ENOUGH):
            world.after(hours=2)
            if not world.running_jobs():
                break
            world.job_succeeds(published(), of=self._job(0))
        for each in world.all("InferenceModel"):
            status = each["status"]
            failed = (status.get("preparation") or {}).get("failure") or {}
            assert status.get("prepared") or failed.get("lasting"), status
        assert not world.running_jobs()

    def _job(self, which: int) -> str:
        """Return the name of a Job that runs, in whose namespace things happen from now on."""
        running = self.world.running_jobs()
        job = job_view(running[which % len(running)])
        self.world.within(job.namespace)
        return job.name


def test_two_namespaces_with_one_store_come_to_an_end() -> None:
    limits = settings(
        max_examples=examples(12),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(TwoNamespaces, settings=limits)
