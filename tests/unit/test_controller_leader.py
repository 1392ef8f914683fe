"""Leader election and claims: who may act, step by step and under every pause, error and schedule."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from enginewright.controller.election import _RETRY, Election, LeaseClaim
from enginewright.controller.leader import (
    DEADLINE,
    LEASE,
    ClaimRefused,
    Elector,
    Lead,
    Record,
    StandBy,
    Take,
    Withdraw,
    overlap,
)
from enginewright.kube.api import JsonObject, Listing
from enginewright.kube.errors import Forbidden, Transient
from enginewright.kube.resources import CLUSTER_ROLE_BINDINGS, Resource
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from tests.support.effort import examples
from tests.support.fake_kube import FakeKube
from tests.support.plan_objects import make_object
from tests.support.virtual_time import run

T = TypeVar("T")
KEY = ("home", "enginewright")
ELSEWHERE = ("staging", "enginewright")
ALL = frozenset({"*"})


def record(
    holder: str,
    version: str = "1",
    key: tuple[str, str] = KEY,
    scope: frozenset[str] = ALL,
    duration: float = LEASE,
) -> Record:
    return Record(key, version, holder, duration, scope)


class Machine:
    """A candidate, and a clock that tests turn."""

    def __init__(self, scope: frozenset[str] = ALL) -> None:
        self.now = 100.0
        self.candidate = Elector(KEY, "me", scope)

    def decide(self, *records: Record, after: float = 0.0) -> object:
        self.now += after
        return self.candidate.decide(records, sent=self.now, received=self.now)

    def confirm(self, *records: Record, after: float = 0.0) -> object:
        self.now += after
        return self.candidate.confirm(records, sent=self.now, received=self.now)


def test_a_free_lease_is_taken_and_confirmed_before_anything_is_done() -> None:
    machine = Machine()
    assert machine.decide() == Take()
    machine.candidate.on_written(sent=machine.now)
    assert not machine.candidate.may_act(machine.now)
    assert machine.confirm(record("me")) == Lead()
    assert machine.candidate.may_act(machine.now + DEADLINE - 0.01)
    assert not machine.candidate.may_act(machine.now + DEADLINE)


def test_a_lease_is_left_to_its_holder_until_it_was_unchanged_for_its_time() -> None:
    machine = Machine()
    assert machine.decide(record("other", "1")) == StandBy("other")
    assert machine.decide(record("other", "2"), after=9) == StandBy("other")
    assert machine.decide(record("other", "2"), after=9.9) == StandBy("other")
    assert machine.decide(record("other", "2"), after=0.1) == Take()


def test_a_lease_that_was_handed_over_is_taken_at_once_and_not_by_another_release() -> None:
    assert Machine().decide(record("")) == Take()
    held, others = record("they", key=ELSEWHERE), record("", "2", key=ELSEWHERE)
    assert Machine().decide(others) == Take()  # it has not been held since this process began
    machine = Machine()
    assert machine.decide(held) == ClaimRefused(held)
    assert machine.decide(others) == ClaimRefused(others)
    assert machine.decide(others, after=14.9) == ClaimRefused(others)
    assert machine.decide(others, after=0.1) == Take()


def test_replicas_of_a_release_come_before_another_release_when_their_leader_dies() -> None:
    dead = record("dead", key=ELSEWHERE)
    replica = Elector(ELSEWHERE, "replica", ALL)
    other = Machine()
    other.decide(dead)
    replica.decide([dead], sent=100, received=100)
    assert replica.decide([dead], sent=110, received=110) == Take()
    assert other.decide(dead, after=10) == ClaimRefused(dead)


def test_withdrawn_claim_is_none() -> None:
    assert Machine().decide(record("", key=ELSEWHERE, duration=1)) == Take()


def test_of_two_that_write_at_once_the_one_that_sees_the_other_withdraws() -> None:
    machine = Machine()
    machine.decide()
    machine.candidate.on_written(sent=machine.now)
    mine, theirs = record("me"), record("they", key=ELSEWHERE)
    assert machine.confirm(mine, theirs) == Withdraw(theirs)
    assert not machine.candidate.may_act(machine.now)


def test_one_that_was_paused_before_its_confirmation_does_not_lead() -> None:
    machine = Machine()
    machine.decide()
    machine.candidate.on_written(sent=machine.now)
    assert machine.confirm(record("me"), after=DEADLINE) is None
    assert Machine().confirm(record("other")) is None


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("*", "*", True),
        ("*", "a", True),
        ("a,b", "b,c", True),
        ("a,b", "c", False),
        ("acceleratorclasses.enginewright.dev", "a", False),
    ],
)
def test_scopes(one: str, other: str, *, common: bool) -> None:
    scopes = frozenset(one.split(",")), frozenset(other.split(","))
    assert overlap(*scopes) is common
    assert overlap(*reversed(scopes)) is common


def test_a_leader_stops_before_its_lease_expires() -> None:
    assert DEADLINE < LEASE


@dataclass
class Replica:
    """One process: an election whose requests and clock go as the test wants."""

    election: Election
    task: asyncio.Task[None]
    lost: list[str] = field(default_factory=list)
    refused: list[str | None] = field(default_factory=list)


class Replicas:
    """Replicas of releases that stand for one API server's Leases."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.replicas: list[Replica] = []

    def start(
        self,
        name: str,
        key: tuple[str, str] = KEY,
        scope: frozenset[str] = ALL,
        *,
        api: Any = None,
        clock: Callable[[], float] | None = None,
    ) -> Replica:
        lost: list[str] = []
        refused: list[str | None] = []
        self._install(key[0])
        election = Election(
            api or self.kube,
            LeaseClaim(key, name, scope),
            lost=lost.append,
            refused=refused.append,
            clock=clock or asyncio.get_running_loop().time,
        )
        replica = Replica(election, asyncio.create_task(election.run()), lost, refused)
        self.replicas.append(replica)
        return replica

    def _install(self, namespace: str) -> None:
        """Add what the chart does for a release."""
        labels = {"app.kubernetes.io/name": "enginewright"}
        subject = {"kind": "ServiceAccount", "name": "enginewright", "namespace": namespace}
        self.kube.put(
            make_object("ClusterRoleBinding", namespace, labels=labels, subjects=[subject])
        )

    async def kill(self, replica: Replica) -> None:
        replica.task.cancel()
        await asyncio.gather(replica.task, return_exceptions=True)

    async def end(self) -> None:
        for replica in self.replicas:
            await self.kill(replica)

    def lease(self, key: tuple[str, str] = KEY) -> JsonObject:
        return self.kube.objects[("Lease", *key)]


@pytest.fixture
async def world() -> AsyncIterator[Replicas]:
    world = Replicas()
    yield world
    await world.end()


async def test_follower_takes_over_from_a_killed_leader_within_15_seconds(world: Replicas) -> None:
    first = world.start("first")
    await asyncio.sleep(1)
    second = world.start("second")
    await asyncio.sleep(60)
    assert (first.election.may_act(), second.election.may_act()) == (True, False)
    await world.kill(first)
    started = asyncio.get_running_loop().time()
    await second.election.leading.wait()
    assert 7 < asyncio.get_running_loop().time() - started < 13
    assert world.lease()["spec"]["leaseTransitions"] == 2


async def test_a_lease_that_is_handed_over_is_taken_within_a_second(world: Replicas) -> None:
    first = world.start("first")
    await asyncio.sleep(1)
    second = world.start("second")
    await asyncio.sleep(5)
    await world.kill(first)
    await first.election.release()
    assert not first.election.may_act()
    started = asyncio.get_running_loop().time()
    await second.election.leading.wait()
    assert asyncio.get_running_loop().time() - started <= 1


async def test_cost_of_an_hour_of_leading_and_of_standing_by(world: Replicas) -> None:
    world.start("first")
    await asyncio.sleep(3600)
    assert world.kube.calls["replace"] <= 1801
    assert world.kube.calls["list"] <= 3
    world.kube.calls.clear()
    world.start("second")
    await asyncio.sleep(3600)
    assert world.kube.calls["list"] <= 3600 / (0.75 * _RETRY) + 1
    assert world.kube.calls["replace"] <= 1801
    assert world.kube.calls["create"] == 0


async def test_errors_are_outlasted_until_the_deadline_and_no_longer(world: Replicas) -> None:
    first = world.start("first")
    await asyncio.sleep(1)
    world.kube.fail["replace"] = [Transient("no")] * 3
    await asyncio.sleep(60)
    assert first.election.may_act()
    world.kube.fail["replace"] = [Transient("no route")] * 100
    await first.task
    assert not first.election.may_act()
    (why,) = first.lost
    assert "was not renewed for 7 s: no route" in why


@pytest.mark.parametrize("event", ["deleted", "taken", "annotated"])
async def test_changes_of_the_lease_by_others(world: Replicas, event: str) -> None:
    first = world.start("first")
    await asyncio.sleep(1)
    if event == "deleted":
        world.kube.remove("Lease", *KEY)
    else:
        lease = world.lease()
        lease["metadata"]["annotations"]["example.com/note"] = "1"
        if event == "taken":
            lease["spec"]["holderIdentity"] = "thief"
        world.kube.put(lease)
    await asyncio.sleep(30)
    assert first.election.may_act() is (event == "annotated")
    assert bool(first.lost) is (event != "annotated")


async def test_second_release_waits_and_takes_over_later(world: Replicas) -> None:
    first = world.start("first")
    await asyncio.sleep(1)
    second = world.start("second", ELSEWHERE)
    await asyncio.sleep(100)
    assert not second.election.may_act()
    why = second.refused[-1]
    assert why is not None
    assert "another release watches all namespaces: Lease home/enginewright" in why
    assert "watchNamespaces" in why
    assert ELSEWHERE not in {key[1:] for key in world.kube.objects}  # it has written nothing
    await world.kill(first)
    await asyncio.sleep(17)
    assert second.election.may_act()
    assert second.refused[-1] is None


class Forbidding(FakeKube):
    """As for the role of an earlier version, which may not list bindings."""

    @override
    async def list(self, resource: Resource, *args: Any, **options: Any) -> Listing:
        if resource == CLUSTER_ROLE_BINDINGS:
            raise Forbidden("clusterrolebindings is forbidden")
        return await super().list(resource, *args, **options)


@pytest.mark.parametrize("kube", [FakeKube(), Forbidding()], ids=["known", "unknown"])
async def test_a_lease_outside_of_releases_claims_nothing_where_these_are_known(
    world: Replicas, kube: FakeKube
) -> None:
    world.kube = kube
    world.start("evil", ("evil", "enginewright"))
    await asyncio.sleep(1)
    kube.remove("ClusterRoleBinding", "", "evil")
    first = world.start("first")
    await asyncio.sleep(60)
    assert first.election.may_act() is not isinstance(kube, Forbidding)


async def test_releases_with_nothing_in_common_lead_side_by_side(world: Replicas) -> None:
    first = world.start("first", KEY, frozenset({"home", "a"}))
    second = world.start("second", ELSEWHERE, frozenset({"staging", "b"}))
    third = world.start("third", ("third", "enginewright"), frozenset({"third", "b"}))
    await asyncio.sleep(30)
    acting = [replica.election.may_act() for replica in (first, second, third)]
    assert acting[0]
    assert sorted(acting[1:]) == [False, True]


async def test_releases_that_start_at_once_agree_on_one(world: Replicas) -> None:
    releases = [world.start(str(n), (str(n), "enginewright")) for n in range(4)]
    await asyncio.sleep(60)
    assert sum(release.election.may_act() for release in releases) == 1


async def test_unreachable_api_server_is_logged_once(
    world: Replicas,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world.kube.fail["list"] = [Transient("no route")] * 5
    with caplog.at_level(logging.WARNING):
        world.start("first")
        await asyncio.sleep(30)
    assert [log_record.getMessage() for log_record in caplog.records] == [
        "cannot acquire the Lease: no route"
    ]


LIVELY: Final = 30  # seconds in which one must lead once the network has healed


class Hostile:
    """The same API server by a network that delays, loses and pauses, and executes what it has lost."""

    def __init__(self, kube: FakeKube, chance: random.Random, worst: float) -> None:
        self._kube = kube
        self._chance = chance
        self._worst = worst
        self._under_way: set[asyncio.Task[Any]] = set()
        self.cut_until = 0.0
        self.healed = False

    async def _over_the_wire(self, call: Callable[[], Awaitable[T]]) -> T:
        if self.healed:
            return await call()
        await asyncio.sleep(self._delay())
        if self._chance.random() < 0.1 or asyncio.get_running_loop().time() < self.cut_until:
            raise Transient("lost on the way there")
        # Once it has arrived it is carried out, also where the client has given up: within two seconds.
        done = asyncio.ensure_future(self._carry_out(call))
        self._under_way.add(done)
        done.add_done_callback(self._under_way.discard)
        answer = await asyncio.shield(done)
        await asyncio.sleep(self._delay())
        if self._chance.random() < 0.1:
            raise Transient("lost on the way back")
        return answer

    async def _carry_out(self, call: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._chance.choice((0, 2)) * self._chance.random())
        return await call()

    def _delay(self) -> float:
        return self._chance.choice((0, 0.01, 0.5, self._worst)) * self._chance.random()

    async def list(self, resource: Any, *_: Any, labels: str | None = None, **__: Any) -> Listing:
        return await self._over_the_wire(lambda: self._kube.list(resource, labels=labels))

    async def create(self, obj: Any) -> JsonObject:
        return await self._over_the_wire(lambda: self._kube.create(obj))

    async def replace(self, obj: Any) -> JsonObject:
        return await self._over_the_wire(lambda: self._kube.replace(obj))


async def leads_once_healed(networks: Iterable[Hostile], replicas: Iterable[Replica]) -> None:
    for network in networks:
        network.healed = True
    for _ in range(LIVELY):
        await asyncio.sleep(1)
        if any(replica.election.may_act() for replica in replicas):
            return
    raise AssertionError("no replica leads, though the network has healed")


@given(
    seed=st.integers(0, 2**32),
    places=st.lists(
        st.tuples(
            st.sampled_from(["home", "staging", "third"]), st.sampled_from(["*", "a", "a,b"])
        ),
        min_size=2,
        max_size=4,
    ),
    worst=st.sampled_from([0.1, 3.0, 20.0]),
)
@example(seed=1, places=[("home", "*"), ("home", "*")], worst=0.1)
@example(seed=3, places=[("home", "*"), ("home", "*"), ("home", "*")], worst=0.1)
@example(seed=4, places=[("home", "*"), ("home", "*")], worst=20.0)
@example(seed=2, places=[("home", "*"), ("staging", "a"), ("staging", "a")], worst=20.0)
@settings(max_examples=examples(25))
def test_overlapping_scopes_never_both_act(
    seed: int, places: list[tuple[str, str]], worst: float
) -> None:
    """Replicas are delayed, cut off, killed, paused and restarted; their clocks have nothing in common."""

    async def scenario() -> None:
        world = Replicas()
        chance = random.Random(seed)  # noqa: S311 - reproducible
        loop = asyncio.get_running_loop()

        def start(number: int) -> Replica:
            namespace, scope = places[number]
            skew = chance.uniform(-1e6, 1e6)
            networks[number] = Hostile(world.kube, chance, worst)
            return world.start(
                f"{namespace}-{chance.random()}",
                (namespace, "enginewright"),
                frozenset(scope.split(",")) | ({namespace} if scope != "*" else set()),
                api=networks[number],
                clock=lambda: loop.time() + skew,
            )

        networks: dict[int, Hostile] = {}
        replicas = [start(number) for number in range(len(places))]
        for _ in range(1000):
            await asyncio.sleep(chance.uniform(0.01, 0.2))
            acting = [
                (replica.election, places[number])
                for number, replica in enumerate(replicas)
                if replica.election.may_act()
            ]
            for one, (here, mine) in acting:
                for other, (there, theirs) in acting:
                    assert one is other or (
                        here != there and "*" not in (mine, theirs) and not set(mine) & set(theirs)
                    ), f"{here} {mine} and {there} {theirs} act at once"
            for number, replica in enumerate(replicas):
                if replica.task.done() or chance.random() < 0.003:
                    await world.kill(replica)
                    replicas[number] = start(number)
                elif (
                    chance.random() < 0.003
                ):  # SIGTERM: its work has ended, the Lease is handed over
                    await world.kill(replica)
                    await replica.election.release()
                    replicas[number] = start(number)
                elif chance.random() < 0.005:
                    networks[number].cut_until = loop.time() + chance.uniform(3, 30)
        await leads_once_healed(networks.values(), replicas)
        await world.end()

    run(scenario())
