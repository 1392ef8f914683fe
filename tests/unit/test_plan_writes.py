"""The operator is killed at every write of a rollout: the rollout ends as if it had not been.

A write that was applied without its response being seen is the same to the next process as a kill before the next write.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

import pytest
from enginewright.manifests.labels import (
    COMPONENT,
    REVISION,
    ROLLBACK,
    SERVE,
    TRACK,
)
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.observed.deployments import DeploymentView, deployment_view
from enginewright.observed.pods import pod_view
from enginewright.plan.types import Facts
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published
from typing_extensions import override

from tests.support.differences import comparable, differences
from tests.support.effort import spread
from tests.support.plan_objects import OTHER, SECOND, Json, publish_model
from tests.support.plan_world import World
from tests.support.stopping import Killed, StoppingApi

TICK: Final = timedelta(seconds=20)
HOLD: Final = timedelta(minutes=1)
LONG: Final = timedelta(minutes=5)  # a tick after one in which nothing happened
LIMIT: Final = 60  # ticks in which a rollout must end
THIRD: Final[Json] = {"uri": "https://models.example/third.onnx"}
CONTENT: Final = {
    "https://models.example/resnet.onnx": publish_model(),
    OTHER["uri"]: SECOND,
    THIRD["uri"]: publish_model(sha256_text("third"), sha256_text("3")),
}


@dataclass(frozen=True)
class Scenario:
    """A rollout of a second revision: what its pods do, and what users do when they see a phase."""

    spec: Json = field(default_factory=dict)
    rollout: Json = field(default_factory=dict)
    classes: tuple[str, ...] = ("cpu",)
    # which pods of the second revision crash or are slow: "canary", "requests" (those that get
    # requests), "promoted" (those that replace others)
    crashes: str = ""
    slow: str = ""
    acts: str = ""  # phase at which a user acts
    action: Callable[["Cluster"], object] = lambda _cluster: None


def third(cluster: "Cluster") -> None:
    cluster.edit(source=THIRD)


def back(cluster: "Cluster") -> None:
    cluster.annotate(ROLLBACK, cluster.second)


def scale(cluster: "Cluster") -> None:
    cluster.edit(replicas=4)


def hand_over(cluster: "Cluster") -> None:
    cluster.edit(serving={"autoscaling": {"minReplicas": 2, "maxReplicas": 8}})


SCENARIOS: Final = {
    "promoted": Scenario(),
    "promoted in steps": Scenario(
        rollout={"canary": {"replicas": 1, "hold": "1m", "steps": ["50%"]}}
    ),
    "promoted in place": Scenario(rollout={"strategy": "InPlace"}),
    "recreated": Scenario(rollout={"strategy": "Recreate"}),
    "on two classes": Scenario(
        spec={"accelerators": [{"class": "a"}, {"class": "b"}], "replicas": 4}, classes=("a", "b")
    ),
    "autoscaled": Scenario(spec={"serving": {"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}}),
    "handed over to an autoscaler": Scenario(acts="Analyzing", action=hand_over),
    "scaled": Scenario(acts="Analyzing", action=scale),
    "crashes": Scenario(crashes="canary"),
    "crashes in place": Scenario(crashes="canary", rollout={"strategy": "InPlace"}),
    "crashes and is kept": Scenario(crashes="canary", rollout={"onFailure": "Pause"}),
    "crashes under requests": Scenario(crashes="requests"),
    "crashes when recreated": Scenario(crashes="promoted", rollout={"strategy": "Recreate"}),
    "crashes when promoted": Scenario(crashes="promoted"),
    "crashes when promoted in place": Scenario(crashes="promoted", rollout={"strategy": "InPlace"}),
    "slow": Scenario(slow="canary"),
    "slow under requests": Scenario(slow="requests"),
    "rolled back while verified": Scenario(acts="Verifying", action=back),
    "rolled back under requests": Scenario(acts="Analyzing", action=back),
    "rolled back when promoted": Scenario(acts="Promoting", action=back),
    "rolled back in place": Scenario(
        acts="Analyzing", action=back, rollout={"strategy": "InPlace"}
    ),
    "rolled back when it serves": Scenario(acts="active", action=back),
    "a third spec while verified": Scenario(acts="Verifying", action=third),
    "a third spec under requests": Scenario(acts="Analyzing", action=third),
    "a third spec when promoted": Scenario(acts="Promoting", action=third),
    "a third spec after a rejection": Scenario(crashes="canary", acts="rejected", action=third),
}


# in which much goes on while the operator is away
MOVING: Final = (
    "promoted",
    "promoted in place",
    "recreated",
    "crashes under requests",
    "crashes when promoted",
    "slow",
    "rolled back when promoted",
)


class Cluster(World):
    """A model that serves, and is updated; the operator may be killed, and is started again `away` ticks later."""

    def __init__(self, scenario: Scenario) -> None:
        spec = {"replicas": 2, **scenario.spec}
        rollout = {"canary": {"replicas": 1, "hold": "1m"}, **scenario.rollout}
        super().__init__(*scenario.classes, **spec, rollout=rollout)
        self.scenario = scenario
        self.stopping = StoppingApi(self.kube, watched=self._check)
        self.api = self.stopping
        self.second = ""  # revision
        self.acted = False
        self.away = 0  # ticks after a kill
        self.idle = 0  # ticks in which nothing was written
        self.down: int | None = None  # ticks until an operator that was killed starts again
        self.unknown = False  # sidecars have not been polled yet
        self.first_ready: dict[str, datetime] = {}  # canaries, by revision
        self.carried: dict[str, list[str]] = {}  # revisions of the serving Deployments, in time
        while not self._is_at_rest():
            self._jobs()
            self._deployments()
            self.settle()
        assert self.conditions()["Ready"] == ("True", "Serving")
        self.stopping.log.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy, quickly: it shares what is never changed."""
        kept = (self.comparisons, self.config, self.last, *self.classes)
        for item in (*kept, *self.measurements.values(), *self.verdicts.values()):
            memo[id(item)] = item
        new = copy.copy(self)
        memo[id(self)] = new
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    # the operator

    @override
    def settle(self) -> Self:
        if self.down is not None:
            return self
        try:
            return super().settle()
        except Killed:
            self.down = self.away
            return self

    @override
    def facts(self) -> Facts:
        facts = super().facts()
        return replace(facts, verdicts={}, measurements={}) if self.unknown else facts

    def _starts(self) -> None:
        """Start a new process, which passes before it has polled any sidecar."""
        self.down = None
        self.unknown = True
        self.settle()
        self.unknown = False
        self.settle()

    # everything else

    def update(self) -> Self:
        return self.edit(source=OTHER)

    @property
    def ended(self) -> bool:
        """Whether nothing has happened for longer than a canary is held."""
        return self.idle > 1

    def tick(self) -> None:
        """Have everybody act once."""
        before = len(self.stopping.log)
        self._user()
        self._jobs()
        self._deployments()
        self.now += TICK if not self.idle else LONG
        if self.down:
            self.down -= 1
        elif self.down is not None:
            self._starts()
        else:
            self.settle()
        if self.down is None:
            self._check_rest()
        still = len(self.stopping.log) == before and self.down is None
        self.idle = self.idle + 1 if still else 0

    def run(self) -> Self:
        for _ in range(LIMIT):
            if self.ended:
                return self
            self.tick()
        raise AssertionError(f"no end after {LIMIT} ticks: {self.status}")

    def _user(self) -> None:
        status, target = self.status, self.status.get("target")
        seen = target["phase"] if target else ""
        if status.get("revision") and status["prepared"]["key"] == SECOND.key:
            self.second = status["revision"]
        if self.second and not seen:
            active = status["active"]["revision"] == self.second
            seen = "active" if active else "rejected" if status.get("lastFailure") else ""
        if self.second and not self.acted and seen == self.scenario.acts != "":
            self.acted = True
            self.scenario.action(self)

    def _jobs(self) -> None:
        for job in self.running_jobs():
            self.job_succeeds(self._result(job), job["metadata"]["name"])

    def _result(self, job: Json) -> Published:
        return next(result for uri, result in CONTENT.items() if uri in str(job["spec"]))

    def _is_at_rest(self) -> bool:
        status = self.status
        return bool(status) and self.conditions()["Ready"] == ("True", "Serving")

    def _deployments(self) -> None:
        for deployment in self.all("Deployment"):
            self._pods(deployment)

    def _pods(self, deployment: Json) -> None:
        """Have a Deployment's controller and its pods do what they do within a tick."""
        name, view = deployment["metadata"]["name"], deployment_view(deployment)
        pods = self.pods_of("deployment", name)
        if self._crashes(view):
            self._crash(deployment, pods, view)
            return
        ours = [pod for pod in pods if revision_of(pod) == view.revision]
        if not view.is_current and len(ours) < view.desired:  # its first new pod starts
            self.serving_pod(name, index=0 if view.is_canary else 90)
            ready = [pod for pod in pods if pod_view(pod).ready]
            self._counts(deployment, len(pods) + 1, len(ours) + 1, len(ready))
            return
        for pod in pods:
            if _number(pod) >= view.desired or pod not in ours:
                self.remove("Pod", pod["metadata"]["name"])
        for index in range(view.desired):
            self._ready(name, index, view.revision, canary=view.is_canary)
        self._counts(deployment, view.desired, view.desired, view.desired)

    def _crash(self, deployment: Json, pods: list[Json], view: DeploymentView) -> None:
        """Have the new pod of a Deployment crash, beside those of the revision before."""
        name, at = deployment["metadata"]["name"], 0 if view.is_canary else 90
        recreates = self.spec["rollout"].get("strategy") == "Recreate"
        others = [entry for entry in pods if revision_of(entry) != view.revision and not recreates]
        for entry in pods:
            if entry not in others and (recreates or _number(entry) != at):
                self.remove("Pod", entry["metadata"]["name"])
        pod = self.find("Pod", f"{name}-{at:05}")
        labels = pod["metadata"]["labels"] if pod else {}
        self.crash(name, Reason.BACKEND_CRASHED, index=at)
        if labels.get(REVISION) == view.revision:  # it is the same pod
            self.get("Pod", f"{name}-{at:05}")["metadata"]["labels"] = labels
        self._counts(deployment, len(others) + 1, 1, len(others))

    def _ready(self, deployment: str, index: int, revision: str, *, canary: bool) -> None:
        name = f"{deployment}-{index:05}"
        pod = self.find("Pod", name)
        if pod is None or not pod_view(pod).ready:
            self.serving_pod(deployment, index=index, ready=True)
        if canary:
            self.first_ready.setdefault(revision, self.now)
            under = self.get("Pod", name)["metadata"]["labels"][COMPONENT] == SERVE
            if revision == self._bad() and (
                self.scenario.slow == "canary" or (under and self.scenario.slow == "requests")
            ):
                self.measures(name, ratio=300)

    def _counts(self, deployment: Json, pods: int, updated: int, available: int) -> None:
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": pods,
            "updatedReplicas": updated,
            "readyReplicas": available,
            "availableReplicas": available,
        }
        if status != deployment.get("status"):
            self.set_status(deployment, status)

    def _bad(self) -> str:
        owners = [
            revision_of(entry)
            for entry in self.all("ControllerRevision")
            if SECOND.key in str(entry["data"])
        ]
        return owners[0] if owners else ""

    def _crashes(self, deployment: DeploymentView) -> bool:
        """Return whether a Deployment's new pods crash."""
        crashes = self.scenario.crashes
        if deployment.revision != self._bad():
            return False
        if not deployment.is_canary:
            return crashes == "promoted"
        under = any(
            canary_pod["metadata"]["labels"][COMPONENT] == SERVE
            for canary_pod in self.canary_pods()
        )
        return crashes == "canary" or (crashes == "requests" and under)

    # what must never be

    def _check(self, *_written: object) -> None:
        """Check, after each write, that nothing gets requests that has not shown that it may."""
        for pod in self.canary_pods():
            labels = pod["metadata"]["labels"]
            if labels[COMPONENT] == SERVE:
                refused = "canary" in (self.scenario.crashes, self.scenario.slow)
                assert not (refused and labels[REVISION] == self._bad())
                assert labels[REVISION] in self.first_ready
        if self.scenario.rollout.get("strategy") != "Recreate" and self.scenario.acts != "active":
            for serving_deployment in self.serving_deployments():
                revision = revision_of(serving_deployment)
                active = self.status.get("active")
                if active and self.second and revision == self._bad() != active["revision"]:
                    assert self.now >= self.first_ready[revision] + HOLD, "after the hold"

        for serving_deployment in self.serving_deployments():
            revision = revision_of(serving_deployment)
            seen = self.carried.setdefault(serving_deployment["metadata"]["name"], [])
            if revision not in seen[-1:]:
                seen.append(revision)

    def _check_rest(self) -> None:
        rejected = {
            revision_of(entry)
            for entry in self.all("ControllerRevision")
            if (outcome := RevisionOutcome.read(entry["metadata"].get("annotations", {})))
            and outcome.state == "Rejected"
        }
        for pod in self.all("Pod"):
            labels = pod["metadata"]["labels"]
            if labels.get(REVISION) in rejected and labels[COMPONENT] == SERVE:
                assert TRACK not in labels, "a rejected revision's canary gets requests"

    def end(self) -> Json:
        """Return what there is in the end, and which revisions pods were restarted for."""
        return {
            "carried": self.carried,
            **{
                f"{kind} {name}": comparable(obj)
                for (kind, _, name), obj in self.kube.objects.items()
            },
        }


def revision_of(obj: Json) -> str:
    return str(obj["metadata"]["labels"][REVISION])


def _number(pod: Json) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def run_update(scenario: Scenario) -> tuple[Cluster, list[Cluster]]:
    """Return an update that nothing disturbs, at its end and before each tick."""
    world = Cluster(scenario)
    before = [copy.deepcopy(world)]
    world.update()
    while not world.ended:
        before.append(copy.deepcopy(world))
        world.tick()
    return world, before


# event: Operator | the operator is killed, at any point
@pytest.mark.parametrize(
    ("name", "away"), [*((name, 0) for name in SCENARIOS), *((name, 4) for name in MOVING)]
)
def test_wherever_it_is_killed_a_rollout_ends_as_if_it_had_not_been(name: str, away: int) -> None:
    scenario = SCENARIOS[name]
    undisturbed, starts = run_update(scenario)
    assert undisturbed.acted == bool(scenario.acts)
    ends = {undisturbed.acted: undisturbed.end()}
    first = sorted(SCENARIOS).index(name) + away  # others try other writes of what is alike
    for kill in spread(range(len(undisturbed.stopping.log)), first):
        cluster = copy.deepcopy(_before(starts, kill))
        cluster.away = away
        cluster.stopping.left = kill - len(cluster.stopping.log)
        if not cluster.stopping.log:
            cluster.update()
        end = cluster.run().end()
        if cluster.acted not in ends:  # while it was away, what a user waits for has passed
            ends[cluster.acted] = run_update(replace(scenario, acts=""))[0].end()
        assert end == ends[cluster.acted], (
            undisturbed.stopping.log[kill],
            *differences(ends[cluster.acted], end),
        )


def _before(starts: list[Cluster], write: int) -> Cluster:
    """Return the last state before a write."""
    return next(start for start in reversed(starts) if len(start.stopping.log) <= write)
