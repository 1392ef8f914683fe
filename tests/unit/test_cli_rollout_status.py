"""What `enginewright status` reports of rollouts in the world that plans are tested in."""

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from enginewright.manifests.labels import COMPONENT, REVISION, ROLLBACK, SERVE
from enginewright.observed.pods import pod_view
from enginewright_cli.rollout.describe import describe, to_measure
from enginewright_cli.rollout.reading import KnownModel
from enginewright_cli.rollout.result import RolloutStatus
from enginewright_cli.rollout.view import show
from enginewright_contract.measurements import Measurements
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check
from rich.console import Console

from tests.support.plan_objects import CPU_IMAGE, OTHER, SECOND, verdict
from tests.support.plan_world import World, serving

CANARY = {"canary": {"replicas": 1, "hold": "60s", "steps": ["50%"]}}


def observe(world: World) -> KnownModel:
    facts = world.facts()
    newest_first = sorted(facts.revisions, key=lambda revision: -revision.number)
    return KnownModel(world.subject, facts.model, tuple(newest_first))


def status(world: World, measured: Mapping[str, Measurements | str] | None = None) -> RolloutStatus:
    pods = [pod for pod in map(pod_view, world.all("Pod")) if pod.label(COMPONENT)]
    serves = [pod for pod in pods if pod.label(COMPONENT) in (SERVE, "canary")]
    return describe(observe(world), serves, measured or {}, world.now)


def text(rollout: RolloutStatus, world: World) -> str:
    printed = io.StringIO()
    show(rollout, Console(file=printed, width=200), world.now)
    return printed.getvalue()


def make_measurements(world: World, *, slower: float = 1.0) -> dict[str, Measurements | str]:
    """Return what the pods of both revisions have measured; the new one's are slower."""
    measurements: dict[str, Measurements | str] = {}
    for pod in to_measure(observe(world).model, list(map(pod_view, world.all("Pod")))):
        new = pod.label(REVISION) == world.status["target"]["revision"]
        world.measures(pod.name, slower if new else 1.0)
        one = world.measurements[pod.name]
        assert one
        measurements[pod.name] = one.model_copy(update={"revision": pod.label(REVISION)})
    return measurements


@pytest.fixture
def canary() -> World:
    """Return a model with a canary whose pod has begun to get requests."""
    world = serving(rollout=CANARY)
    world.edit(source=OTHER).job_succeeds(SECOND)
    (deployment,) = world.canaries()
    world.complete(deployment["metadata"]["name"])
    world.settle()
    assert world.status["target"]["phase"] == "Analyzing"
    return world


def test_one_revision_that_serves() -> None:
    world = serving()
    rollout = status(world)
    revision = world.status["active"]["revision"]
    assert (rollout.verdict, rollout.reason, rollout.new, rollout.progress) == (
        "healthy",
        "Serving",
        None,
        None,
    )
    assert rollout.stable
    assert (rollout.stable.revision, rollout.stable.model_digest) == (revision, "d" * 64)
    assert rollout.stable.precision == "source"
    (cpu,) = rollout.stable.classes
    assert (cpu.name, cpu.backend, cpu.image, cpu.ready, cpu.pods) == (
        "cpu",
        "cpu",
        CPU_IMAGE,
        2,
        2,
    )
    (past,) = rollout.history
    assert (past.revision, past.outcome, past.images) == (revision, "Promoted", (CPU_IMAGE,))


def test_parts_of_outputs_that_no_sample_judges_are_a_note() -> None:
    world = serving().sidecars_say(verdict(unproven={Check.GOLDEN: Reason.PARITY_UNKNOWN}))
    rollout = status(world)
    assert rollout.verdict == "healthy"
    (note,) = rollout.notes
    assert note == f"ParityVerified is Unknown: golden!; {Reason.PARITY_UNKNOWN.remedy}"
    assert f"note: {note}" in " ".join(text(rollout, world).split())


def test_nothing_serves_yet() -> None:
    world = World().settle()
    rollout = status(world)
    assert (rollout.verdict, rollout.stable, rollout.new, rollout.history) == (
        "progressing",
        None,
        None,
        (),
    )
    world.job_succeeds()
    rollout = status(world)
    assert rollout.stable is None
    assert rollout.new
    assert rollout.new.revision == world.status["revision"]


def test_both_revisions_of_a_canary(canary: World) -> None:
    canary.now = canary.now.replace(microsecond=0)
    canary.later(seconds=15)
    rollout = status(canary)
    assert rollout.verdict == "progressing"
    assert rollout.stable
    assert rollout.new
    assert [arm.classes[0].ready for arm in (rollout.stable, rollout.new)] == [2, 1]
    assert [arm.model_digest for arm in (rollout.stable, rollout.new)] == ["d" * 64, "e" * 64]
    progress = rollout.progress
    assert progress
    assert (progress.phase, progress.step, progress.steps) == ("Analyzing", 1, 2)
    assert (progress.held_seconds, progress.left_seconds) == (15, 45)
    shown = text(rollout, canary)
    for item in ("STABLE", "NEW", "Analyzing, step 1 of 2, for 15 s, 45 s left", "PROGRESSING"):
        assert item in shown


@pytest.mark.parametrize(("slower", "state"), [(1.0, "passed"), (2.0, "failed")])
def test_the_comparison_is_the_operators(canary: World, slower: float, state: str) -> None:
    rollout = status(canary, make_measurements(canary, slower=slower))
    assert rollout.analysis
    assert rollout.analysis.state == state
    (latency,) = [
        figure for figure in rollout.analysis.figures if figure.name.startswith("latency")
    ]
    assert (latency.state, latency.limit) == (state, 1.2)
    assert latency.ratio == pytest.approx(slower, rel=0.05)
    assert latency.stable_samples > 0
    shown = text(rollout, canary)
    assert f"comparison {state}" in shown
    assert "golden sample" in shown


def test_unmeasured_pods_are_a_note(canary: World) -> None:
    names = [
        view.name
        for view in to_measure(observe(canary).model, list(map(pod_view, canary.all("Pod"))))
    ]
    assert len(names) == 3
    rollout = status(canary, dict.fromkeys(names, "you may not read measurements"))
    assert (rollout.analysis, rollout.notes) == (None, ("you may not read measurements",))
    assert "note: you may not read measurements" in text(rollout, canary)
    # of another revision, as of a pod whose name is used again
    others = {name: Measurements(model="resnet", revision="other", since=0) for name in names}
    assert status(canary, others).analysis is None


def test_golden_samples_that_are_not_compared_are_a_note(canary: World) -> None:
    others = {
        name: item.model_copy(
            update={
                "latencies": tuple(
                    series.model_copy(update={"inputs": str("canary" in name)})
                    for series in item.latencies
                )
            }
        )
        for name, item in make_measurements(canary).items()
        if isinstance(item, Measurements)
    }
    rollout = status(canary, others)
    (note,) = rollout.notes
    assert "'s'" in note
    assert f"note: {note}" in " ".join(text(rollout, canary).split())


def test_without_access_to_pods(canary: World) -> None:
    rollout = describe(observe(canary), None, {}, canary.now)
    assert rollout.notes == ("you may not read pods",)
    assert rollout.stable
    assert (rollout.stable.classes[0].pods, rollout.stable.classes[0].ready) == (None, None)
    assert "pods not known" in text(rollout, canary)


def test_a_rollback(canary: World) -> None:
    new = canary.status["target"]["revision"]
    canary.annotate(ROLLBACK, new)
    rollout = status(canary)
    assert (rollout.verdict, rollout.reason, rollout.new) == ("rejected", "RolledBackByUser", None)
    assert rollout.last_failure
    assert (rollout.last_failure.revision, rollout.last_failure.reason) == (new, "RolledBackByUser")
    assert {revision.revision: revision.outcome for revision in rollout.history}[new] == "Rejected"
    assert to_measure(observe(canary).model, list(map(pod_view, canary.all("Pod")))) == []


def test_going_back_from_the_active_one() -> None:
    world = serving()
    first = world.status["active"]["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND).all_available()
    second = world.status["active"]["revision"]
    world.annotate(ROLLBACK, f"{second} {first}")
    rollout = status(world)
    assert rollout.stable
    assert rollout.new
    assert rollout.progress
    assert (rollout.verdict, rollout.stable.revision) == ("rejected", second)
    assert (rollout.new.revision, rollout.progress.phase) == (first, "GoingBack")


def test_a_paused_rollout_is_stalled() -> None:
    world = serving(rollout={**CANARY, "paused": True})
    world.edit(source=OTHER, rollout={**CANARY, "paused": True}).job_succeeds(SECOND)
    rollout = status(world)
    assert (rollout.verdict, rollout.paused) == ("stalled", True)
    assert rollout.progress
    assert (rollout.progress.phase, rollout.progress.reason) == ("Held", "Suspended")
    assert rollout.progress.left_seconds is None
    assert "(paused)" in text(rollout, world)


def test_a_spec_that_the_operator_has_not_seen_is_not_healthy() -> None:
    world = serving()
    world.subject["metadata"]["generation"] += 1
    assert status(world).verdict == "progressing"


def test_json_has_the_documented_names(canary: World) -> None:
    printed: dict[str, Any] = json.loads(status(canary, make_measurements(canary)).to_json())
    assert printed["schema"] == "enginewright.dev/rollout-status/v1"
    assert RolloutStatus.model_validate(printed) == status(canary, make_measurements(canary))


def test_hostile_text_is_printed_as_it_is(canary: World) -> None:
    hostile = "\x1b[2J[red]"
    canary.status["lastFailure"] = {"revision": "r", "reason": "X", "message": hostile}
    rollout = status(canary, make_measurements(canary))
    assert rollout.analysis
    figure = rollout.analysis.figures[0].model_copy(update={"name": f"output {hostile}"})
    past = rollout.history[0].model_copy(update={"reason": "X", "message": hostile})
    analysis = rollout.analysis.model_copy(update={"figures": (figure,)})
    shown = text(rollout.model_copy(update={"analysis": analysis, "history": (past,)}), canary)
    assert "\x1b" not in shown
    assert shown.count("\\x1b[2J[red]") == 3


def test_an_interim_and_the_engine_that_replaces_it() -> None:
    world = World(build={"interim": "CPU"}, rollout=CANARY).has_gpus().settle().job_succeeds()
    world.all_available()
    rollout = status(world)
    assert (rollout.verdict, rollout.reason) == ("healthy", "ServingInterim")
    assert "cpu (interim), 1/1 pods ready" in text(rollout, world)
    world.engine_built()
    shown = text(status(world), world)
    assert "cpu (interim), 1/1 pods ready" in shown
    assert "tensorrt-rtx, " in shown
