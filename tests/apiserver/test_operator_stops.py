"""The operator is stopped at every write of a rollout to a real API server: the rollout ends as if it had not been."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
from enginewright.kube.connection import load_connection
from enginewright.kube.errors import KubeError
from enginewright.kube.metrics import RestMetrics
from prometheus_client import CollectorRegistry

from tests.apiserver.world import World
from tests.e2e.harness import Namespace
from tests.support.differences import differences
from tests.support.live_rollout import LiveRollout, Update
from tests.support.played_namespace import PlayingClient

pytestmark = pytest.mark.apiserver

UPDATES: Final = {
    "promoted": (Update(), "Serving", ["old", "new"]),
    "slow under requests": (Update(slow=True), "SlowerThanStable", ["old"]),
    "crashes when promoted": (Update(crashes=True), "BackendCrashed", ["old", "new", "old"]),
}
AT_ONCE: Final = 8
_numbers = itertools.count(1)

Rollouts = Callable[[str], LiveRollout]


@pytest.fixture(scope="module")
def furnished(
    new_namespace: Callable[[], Namespace], tmp_path_factory: pytest.TempPathFactory
) -> Namespace:
    """A namespace of a cluster with one class and one node."""
    world = World(new_namespace(), new_namespace(), tmp_path_factory.mktemp("world"))
    world.furnish()
    return world.user


@pytest.fixture
async def rollouts(
    furnished: Namespace, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rollouts]:
    """A function that returns an update, by its name, in a new namespace."""
    monkeypatch.setenv("KUBECONFIG", str(furnished.kubeconfig))
    client = PlayingClient(load_connection, RestMetrics(CollectorRegistry()))

    def create(name: str) -> LiveRollout:
        return LiveRollout(client, f"{furnished.name}-{next(_numbers)}", UPDATES[name][0])

    yield create
    await client.close()


# event: Operator | the operator is killed, at any point
@pytest.mark.parametrize("name", UPDATES)
async def test_wherever_it_is_stopped_a_rollout_ends_as_if_it_had_not_been(
    rollouts: Rollouts, name: str
) -> None:
    """Killed before the first write, and after each one: before the next one is the same to the next process."""
    undisturbed = await rollouts(name).run()
    writes = undisturbed.log
    assert (undisturbed.ready, undisturbed.carried) == UPDATES[name][1:]
    slots = asyncio.Semaphore(AT_ONCE)

    async def differ(moment: str, stop: int, **how: bool) -> str:
        """Return how the end differs from that of the undisturbed rollout."""
        async with slots:
            try:
                ended = await rollouts(name).run(stop, **how)
            except (AssertionError, KubeError) as error:
                return f"stopped {moment}: {error!r}"
        faults = [*differences(undisturbed.end, ended.end)]
        if ended.carried != undisturbed.carried:
            faults.append(f"serving pods are restarted for {ended.carried}")
        if ended.log[: stop + 1] != writes[: stop + 1]:
            faults.append(f"other writes before: {ended.log}")
        return f"stopped {moment}: {'; '.join(faults)}" if faults else ""

    reports = await asyncio.gather(
        differ("before the first write", 0, applied=False),
        *(
            differ(f"at write {number + 1} of {len(writes)}, {write}", number)
            for number, write in enumerate(writes)
        ),
        differ("at every second write in turn", 1, again=True),
    )
    assert not any(reports), "\n".join(filter(None, reports))
