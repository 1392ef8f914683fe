"""Several operators at one API server: replicas of a release, and releases beside each other."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from tests.apiserver.world import MODEL, World, accelerator_class, model
from tests.e2e.harness import REPOSITORY, Namespace, eventually, run
from tests.support import simulated_cluster as played
from tests.support.operator_process import OperatorProcess
from tests.support.plan_objects import make_object
from tests.support.source_cutter import Cutter

pytestmark = pytest.mark.apiserver

FAIL_OVER = 15.0  # seconds
HAND_OVER = 5.0  # less than until the Lease expires, also on a busy machine


def has_leader(operator: OperatorProcess) -> bool:
    return operator.leads


def is_refused(operator: OperatorProcess) -> bool:
    return "another release" in operator.get("/readyz")[1]


def keeps_classes(world: World) -> bool:
    leases = world.system.items("leases")
    holders = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in leases}
    return bool(holders.get("enginewright-classes"))


@contextmanager
def two(world: World) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """A leader with a model that serves, and a follower."""
    with world.operator() as leader:
        world.bring_up(leader)
        with world.operator() as follower:
            follower.wait_standby()
            yield leader, follower


def wait_until_it_acts(world: World, uri: str, started: float) -> float:
    """Change the model, and return how long after `started` the operator had acted on it."""
    before = {job["metadata"]["name"] for job in world.jobs("prepare")}
    world.user.apply(model(uri=uri))
    generation = world.user.get("im", MODEL)["metadata"]["generation"]

    def has_acted() -> bool:
        status = world.user.get("im", MODEL).get("status", {})
        return bool(status.get("observedGeneration") == generation)

    eventually(has_acted, 30, "the next leader", interval=0.05)
    assert len({job["metadata"]["name"] for job in world.jobs("prepare")} - before) == 1
    return time.monotonic() - started


# event: Operator | the leader crashes | all pods; another replica leads within 15 s | `kubectl
#   get lease`
def test_a_follower_takes_over_from_a_leader_that_is_killed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with two(world) as (leader, follower):
        world.user.apply(model(uri="https://example.com/second.onnx"))
        world.job("prepare", 2)
        leader.wait_quiet()
        assert follower.writes() == 0
        assert follower.total("enginewright_models") == 0
        assert leader.total("enginewright_models", condition="Ready", status="True") == 0
        assert leader.total("enginewright_models", condition="Available", status="True") == 1
        assert follower.total("workqueue_depth") == 0
        assert follower.passes() == 0

        listed = follower.reads()
        started = time.monotonic()
        leader.kill()
        seconds = wait_until_it_acts(world, "https://example.com/third.onnx", started)
        assert seconds < FAIL_OVER
        assert follower.leads
        assert follower.reads() - listed <= 30  # objects are not read one by one
        assert len(world.jobs("probe")) == 1
    with capsys.disabled():
        print(f"\nfail-over after SIGKILL: acted upon after {seconds:.1f} s")


# event: Operator | the leader is shut down, as by an update of the chart | all pods; another
#   replica leads within 2 s | `kubectl get lease`
def test_a_leader_that_is_terminated_hands_over(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    durations = []
    with two(world) as (first, second):
        for old, uri in ((first, "second"), (second, "third")):
            with world.operator() if old is second else nullcontext(second) as new:
                new.wait_standby()
                started = time.monotonic()
                old.tell_to_end()
                eventually(partial(has_leader, new), 10, "the hand-over", interval=0.02)
                durations.append(time.monotonic() - started)
                assert old.wait_exit() == 0
                wait_until_it_acts(world, f"https://example.com/{uri}.onnx", started)
                assert "level=error" not in old.log
    assert max(durations) < HAND_OVER
    assert world.system.get("lease", "enginewright")["spec"]["holderIdentity"] == ""
    with capsys.disabled():
        print(
            f"\nhand-over on SIGTERM: led on after {', '.join(f'{duration:.2f} s' for duration in durations)}"
        )


def test_a_leader_that_loses_its_lease_ends(world: World) -> None:
    with world.operator() as operator:
        operator.wait_ready()
        world.system.patch("lease", "enginewright", {"spec": {"holderIdentity": "other"}})
        assert operator.wait_exit() == 75
        assert "the Lease was acquired by other" in operator.log
    with world.operator() as operator:
        operator.wait_ready()  # as nothing renews it


def api_server_url(world: World) -> str:
    (url,) = re.findall(r"https://(127.0.0.1:\d+)", world.user.kubeconfig.read_text())
    return f"http://{url}"


def follower_through(world: World, tunnel: Cutter) -> OperatorProcess:
    """Return an operator that reaches the API server by a connection that the test controls."""
    url = f"127.0.0.1:{tunnel.port}"
    through = world.folder / "through"
    direct = world.user.kubeconfig.read_text()
    through.write_text(re.sub(r"127\.0\.0\.1:\d+", url, direct))
    return OperatorProcess(through, world.system.name, world.folder)


# event: Operator | an object is deleted while a watch is broken | all pods | the current state,
#   within seconds
def test_an_object_deleted_while_a_watch_was_broken_is_gone_for_the_next_leader(
    world: World,
) -> None:
    """A restarted API server answers an old watch with 410, and does not send the deletion again."""
    url = api_server_url(world)
    with ExitStack() as running:
        leader = running.enter_context(world.operator())
        world.bring_up(leader)
        world.user.apply(accelerator_class("second"))
        with Cutter(url) as tunnel:
            port = tunnel.port
            follower = running.enter_context(follower_through(world, tunnel))
            follower.wait_standby()
        world.user.delete("aclass", "second")
        restart_api_server(world.user.kubeconfig)
        leader.kill()
        with Cutter(url, port=port):
            moved = model()
            moved["spec"]["accelerators"] = [{"class": "second"}]
            world.user.apply(moved)
            world.user.wait_condition(MODEL, "Ready", "False", "UnknownAcceleratorClass", 60)
            assert follower.leads


def restart_api_server(kubeconfig: Path) -> None:
    cluster = [str(REPOSITORY / "hack/cluster/cluster"), "--name", kubeconfig.parent.name]
    run([*cluster, "kill", "kube-apiserver"])
    run([*cluster, "up", "--control-plane-only"])


# event: Operator | a second release is installed | all pods, under the first release alone |
#   Event `ClaimedByAnotherRelease` of the second one's Deployment
def test_a_second_release_does_nothing_says_why_and_takes_over(
    world: World, new_namespace: Callable[[], Namespace]
) -> None:
    elsewhere = new_namespace()
    labels, containers = {"a": "b"}, [{"name": "c", "image": "i"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    elsewhere.apply(make_object("Deployment", "staging", spec=spec))
    second = OperatorProcess(
        world.user.kubeconfig, elsewhere.name, world.folder, settings={"deployment": "staging"}
    )
    with world.operator() as first:
        world.bring_up(first)
        first.wait_quiet()
        writes = first.writes()
        with second:
            eventually(partial(is_refused, second), 20, interval=0.1)
            code, text = second.get("/readyz")
            assert code == 503
            assert "another release watches all namespaces" in text
            assert f"Lease {world.system.name}/enginewright" in text
            assert "watchNamespaces" in text
            reported = elsewhere.kubectl("describe", "deployment", "staging")
            assert "ClaimedByAnotherRelease" in reported
            assert "not reconciling: another release watches" in second.log
            assert second.get("/healthz")[0] == 200
            world.user.apply(model(uri="https://example.com/second.onnx"))
            world.job("prepare", 2)
            first.wait_quiet()
            assert first.writes() > writes
            assert second.writes() == 0
            assert elsewhere.items("leases") == []
            assert elsewhere.items("jobs") == []

            assert first.terminate()[0] == 0
            second.wait_ready()
            (owner,) = elsewhere.get("lease", "staging")["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"]) == ("Deployment", "staging")
            eventually(lambda: elsewhere.items("jobs"), 20, "its own probe of the image")
            (job,) = elsewhere.items("jobs")
            assert job["metadata"]["ownerReferences"][0]["uid"] == owner["uid"]


def test_releases_with_namespaces_of_their_own_work_side_by_side(
    world: World, new_namespace: Callable[[], Namespace]
) -> None:
    """A release that watches a namespace of another one, or all of them, does nothing."""
    other = World(new_namespace(), new_namespace(), world.folder)
    for namespace in (other.system, other.user):
        played.add_account(namespace)
    played.add_release(other.system)
    third = World(new_namespace(), other.user, world.folder)
    everywhere = World(new_namespace(), world.user, world.folder)
    with (
        world.operator(watchNamespaces=[world.user.name]) as first,
        other.operator(watchNamespaces=[other.user.name]) as second,
    ):
        world.bring_up(first)
        other.bring_up(second)
        for operator in (first, second):
            operator.wait_quiet()
            assert "level=error" not in operator.log
            assert operator.total("enginewright_models", condition="Ready", status="True") == 1
        assert world.user.get("aclass", "cpu")["status"]["nodes"] == 1
        keepers = [item for item in (world, other) if keeps_classes(item)]
        assert len(keepers) == 1  # one of them keeps the classes
        with (
            third.operator(watchNamespaces=[third.user.name]) as overlapping,
            everywhere.operator() as all_of_them,
        ):
            for operator in (overlapping, all_of_them):
                eventually(partial(is_refused, operator), 20)
                assert operator.writes() == 0
        keeper, follower = (first, second) if keepers[0] is world else (second, first)
        keeper.terminate()
        left = other if keepers[0] is world else world
        eventually(lambda: keeps_classes(left), 30, "the classes' next keeper")
        assert follower.leads


def test_a_namespace_that_is_not_watched_is_left_alone(
    world: World, new_namespace: Callable[[], Namespace]
) -> None:
    elsewhere = new_namespace()
    with world.operator(watchNamespaces=[world.user.name]) as operator:
        operator.wait_ready()
        elsewhere.apply(model("ignored"))
        world.user.apply(model())
        world.probe_images()
        world.prepare()
        world.serve()
        assert elsewhere.get("im", "ignored")["status"] == {"observedGeneration": -1}
        assert operator.total("enginewright_models", condition="Ready") == 1
    elsewhere.delete("im", "ignored")
