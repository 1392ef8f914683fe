"""How the process ends when kopf does."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest
from enginewright import main


class Application:
    """Notes in which order it is stopped."""

    def __init__(self) -> None:
        self.informer = SimpleNamespace(present=(), outdated=asyncio.Event())
        self.stopped: list[str] = []

    async def stop_acting(self) -> None:
        self.stopped.append("acting")

    async def stop_serving(self) -> None:
        self.stopped.append("serving")


async def watch(application: Application, stop: asyncio.Event) -> None:
    settings = cast("Any", SimpleNamespace(namespaces=None))
    stopping = asyncio.create_task(stop.wait())
    stopping.set_name("stopping")
    await main._watch(cast("Any", application), settings, stop, stopping)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, asyncio.Task[None]]:
    """Kopf's tasks: one that fails once it is told to, and one that goes on."""
    spawned: dict[str, asyncio.Task[None]] = {}
    monkeypatch.setattr(main, "_on_signals", lambda _stop: None)
    for name in ("kopf", "asyncio"):  # other tests' logs stay
        monkeypatch.setattr(logging.getLogger(name), "setLevel", lambda _level: None)

    async def fail() -> None:
        await asyncio.sleep(60)
        raise ValueError("pods is forbidden", {"code": 403})

    async def spawn(**_: Any) -> list[asyncio.Task[None]]:
        spawned["failing"] = asyncio.create_task(fail())
        spawned["other"] = asyncio.create_task(asyncio.sleep(3600))
        return [*spawned.values()]

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    return spawned


async def test_a_watch_that_fails_lets_work_end_and_says_why(
    tasks: dict[str, asyncio.Task[None]],
) -> None:
    application = Application()
    ours = asyncio.create_task(asyncio.sleep(3600))  # as a worker that was started after kopf
    with pytest.raises(main.WatchEnded, match=r"^pods is forbidden$"):
        await watch(application, asyncio.Event())
    assert application.stopped == ["acting", "serving"]
    assert tasks["other"].cancelled()
    assert not ours.done()


async def test_a_signal_and_a_new_kind_end_it_without_an_error(
    tasks: dict[str, asyncio.Task[None]],
) -> None:
    for number in range(2):
        application, stop = Application(), asyncio.Event()
        (stop, application.informer.outdated)[number].set()
        await watch(application, stop)
        assert application.stopped == ["acting", "serving"]
        assert all(task.cancelled() for task in tasks.values())
