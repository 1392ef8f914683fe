"""Faults of the API server and on the way to it: what users see, that all converges, and that nothing is lost."""

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.apiserver.disturbed import DEPLOYMENT, Disturbed, disturb
from tests.apiserver.world import World, set_up
from tests.e2e.harness import REPOSITORY, Namespace, eventually, run
from tests.support.api_proxy import WRITING, Rule

pytestmark = pytest.mark.apiserver

AGAIN: Final = 75  # the exit code of an operator that wants to be started again
LOST: Final = "lost leadership, exiting: the Lease was not renewed"
NO_LEASES: Final = "^(?!.*/leases)"
SECONDS: Final = float(os.environ.get("FAULT_SECONDS", "60"))  # of the random schedule
SEED: Final = int(os.environ.get("FAULT_SEED", time.time_ns() % 1_000_000))


@dataclass(frozen=True)
class Fault:
    """What happens, for how long, and what is seen of it."""

    rules: tuple[Rule, ...] = ()
    seconds: float = 5.0
    until: Callable[[Disturbed, str], object] | None = None  # it ends once this is seen
    says: str = ""  # the log, as a regular expression
    exits: bool = False  # the operator, to be started again
    begin: Callable[[Disturbed], object] = lambda _: None
    end: Callable[[Disturbed], object] = lambda _: None


def run_cluster(disturbed: Disturbed, *arguments: str) -> None:
    name = disturbed.world.user.kubeconfig.parent.name
    run([str(REPOSITORY / "hack/cluster/cluster"), "--name", name, *arguments])


def start_control_plane(disturbed: Disturbed) -> None:
    run_cluster(disturbed, "up", "--control-plane-only")


def revoke(disturbed: Disturbed) -> None:
    """Take the operator's rights from it, and have it ask for them again."""
    admin = disturbed.world.system
    disturbed.revoked = admin.get("clusterrolebinding", "enginewright")
    admin.delete("clusterrolebinding", "enginewright")
    disturbed.proxy.set(Rule("expire", watches=True))


def give_back(disturbed: Disturbed) -> None:
    kept: dict[str, Any] = disturbed.revoked
    names = {"name": kept["metadata"]["name"]}
    disturbed.world.system.create({**kept, "metadata": names})


def is_refused(disturbed: Disturbed, name: str) -> bool:
    """Return whether a model says that the write of its Job was refused."""
    ready = disturbed.world.user.condition(name, "Ready")
    return ready.get("reason") == "ApplyFailed" and "the test refuses it" in ready["message"]


def is_not_ready(disturbed: Disturbed, _name: str) -> bool:
    """Return whether the operator says that it may not list."""
    code, text = disturbed.operator.get("/readyz")
    return code == 503 and "cannot list" in text and "forbidden" in text


def has_seen_edit(disturbed: Disturbed, _name: str) -> bool:
    return disturbed.has_seen_edit()


FAULTS: Final = {
    "429": Fault((Rule("refuse", 429, path=NO_LEASES, share=0.7, retry_after=1),)),
    "500": Fault((Rule("refuse", 500, path=NO_LEASES, share=0.5),)),
    "503": Fault((Rule("refuse", 503),), seconds=12, says=LOST, exits=True),
    "409": Fault((Rule("refuse", 409, WRITING, path=NO_LEASES),)),
    "422": Fault((Rule("refuse", 422, WRITING, path="/jobs/"),), until=is_refused),
    "410": Fault((Rule("expire", watches=True, share=0.3),)),
    "cut connections": Fault((Rule("cut", path=NO_LEASES, share=0.5),)),
    "lost responses": Fault((Rule("lose", methods=WRITING, share=0.5),)),
    "slow watches": Fault((Rule("delay", watches=True, seconds=3.0),)),
    "stale reads": Fault((Rule("expire", watches=True, share=0.2), Rule("stale", path=NO_LEASES))),
    "half-open connections": Fault((Rule("hang", open_before=True),), until=has_seen_edit),
    "API server killed": Fault(
        begin=lambda disturbed: run_cluster(disturbed, "kill", "kube-apiserver"),
        end=start_control_plane,
        seconds=12,
        says=LOST,
        exits=True,
    ),
    "etcd killed": Fault(
        begin=lambda disturbed: run_cluster(disturbed, "kill", "etcd"),
        end=start_control_plane,
        seconds=12,
        says=LOST,
        exits=True,
    ),
    "rights revoked": Fault(
        begin=revoke,
        end=give_back,
        until=is_not_ready,
        says="cannot list .*forbidden",
    ),
    "controllers stopped": Fault(
        begin=lambda disturbed: disturbed.players.pause(),
        end=lambda disturbed: disturbed.players.go_on(),
    ),
}
# of a random schedule: those that the proxy alone makes, and that end by themselves
AT_RANDOM: Final = tuple(name for name, fault in FAULTS.items() if fault.rules)


@pytest.fixture(scope="module")
def disturbed(
    new_namespace: Callable[[], Namespace], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disturbed]:
    folder = tmp_path_factory.mktemp("world")
    with set_up(World, new_namespace, folder) as world, disturb(world, seed=SEED) as disturbed:
        yield disturbed


# event: APIServer | it refuses requests for a while (409, 429, 500), connections are cut, or responses lost | all pods |
#   nothing: what failed is repeated, after Retry-After where that is given, and each write is made once
# event: APIServer | it refuses the writes of some objects (422) | the previous revision, which is scaled | Ready
#   `ApplyFailed` with its words; it is tried again within 2 minutes
# event: APIServer | it or etcd is down, or it refuses everything (503), for more than 7 s | all pods | the operator exits with
#   75 and is not ready until everything is listed; what is unchanged is not written again
# event: APIServer | watches expire (410) or are late, or lists are old | all pods | changes are acted upon once they come,
#   and nothing is undone
# event: APIServer | connections are half open: nothing comes, and no error | all pods | edits are seen within 75 s
# event: APIServer | the operator's rights are revoked, and given back | all pods | `/readyz` and the log say what it may not
#   list within 30 s of the end of a watch, until it may
# event: APIServer | the controller manager is down | all pods | Ready `Preparing` or `RollingOut`, until it is back
@pytest.mark.parametrize("name", FAULTS)
def test_faults_end_and_nothing_is_lost(disturbed: Disturbed, name: str) -> None:
    """While each lasts, a model that serves is scaled and another one applied."""
    fault = FAULTS[name]
    before, served = disturbed.begin(), disturbed.find_serving()
    replicas = 3 - int(disturbed.world.user.get("deployment", DEPLOYMENT)["spec"]["replicas"])
    disturbed.proxy.set(*fault.rules)
    fault.begin(disturbed)
    with disturbed.edit(replicas) as other:
        if fault.until is None:
            time.sleep(fault.seconds)
        else:
            seen = fault.until
            eventually(lambda: seen(disturbed, other), 150, "what is seen of it", interval=0.2)
        fault.end(disturbed)
        disturbed.proxy.set()
    disturbed.wait_converged(replicas, other)
    assert disturbed.find_serving() == served
    disturbed.check(before, other)
    disturbed.check_log(fault.says)
    assert disturbed.exits == ([AGAIN] if fault.exits else [])


# event: APIServer | it refuses requests for a while (409, 429, 500), connections are cut, or responses lost
def test_random_faults_end_and_nothing_is_lost(
    disturbed: Disturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several at a time, each for some seconds, while models are applied, scaled and deleted."""
    with capsys.disabled():
        print(f"\n{SECONDS:g} s of faults: FAULT_SEED={SEED} FAULT_SECONDS={SECONDS:g}")
    chance = random.Random(SEED)  # noqa: S311 - no secret
    served, replicas = disturbed.find_serving(), 1
    disturbed.begin()
    models: list[str] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        chosen = chance.sample(AT_RANDOM, k=chance.choice((1, 1, 2)))
        disturbed.proxy.set(*(rule for name in chosen for rule in FAULTS[name].rules))
        replicas = chance.choice((1, 2, 3))
        with disturbed.edit(replicas) as other:
            models.append(other)
        if len(models) > chance.randint(2, 6):
            disturbed.forget(models.pop(chance.randrange(len(models))))
        time.sleep(chance.uniform(1, 9))
        if chance.random() < 1 / 3:
            disturbed.proxy.set()
            time.sleep(chance.uniform(0, 3))
    disturbed.proxy.set()
    disturbed.wait_converged(replicas, *models)
    assert disturbed.find_serving() == served
    disturbed.check({}, *models)
    disturbed.check_log(f"{LOST}|")
    assert set(disturbed.exits) <= {AGAIN}
