"""What a server process holds for its clients, read from inside of it."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enginewright_serving.server.endpoints import Endpoints
from enginewright_serving.server.startup.prepare import ServedModel

from tests.support.serving import Server
from tests.support.waiting import Deadline

_FILE = "accounts.json"
_SECONDS = 60.0


def shows_accounts(root: Path) -> str:
    """Return code for `Server(before=...)`: SIGUSR2 makes a process write what it holds."""
    return f"from tests.support import accounts; accounts.show_on_signal({str(root / _FILE)!r})"


def show_on_signal(path: str) -> None:
    """Let SIGUSR2 write what this process holds to a file, once it serves a model."""
    serve_model = Endpoints.serve_model
    path += str(os.getpid())

    def serve_and_remember(
        endpoints: Endpoints, model: ServedModel, on_lost_thread: Callable[[], None]
    ) -> None:
        serve_model(endpoints, model, on_lost_thread)
        before = asyncio.all_tasks()  # some may end, such as those of connections being accepted

        def show() -> None:
            held = _read(endpoints) | {"tasks": len(asyncio.all_tasks() - before)}
            Path(f"{path}.new").write_text(json.dumps(held))
            Path(f"{path}.new").rename(path)

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, show)

    setattr(Endpoints, "serve_model", serve_and_remember)  # noqa: B010 - a method is no variable


def _read(endpoints: Endpoints) -> dict[str, Any]:
    apps = app, _ = endpoints.app, endpoints.grpc
    account, inference = app.inflight.account, app.inference
    serving = inference._serving
    assert serving is not None
    return {
        "bytes": account.total,
        "transfers": len(account._transfers),
        "outstanding": inference.outstanding,
        "queued": serving.worker.depth,
        "with a timeout": len(inference.results.waiting),
        "probes": inference._probes,
        "decoded or encoded": app.codec_thread.outstanding,
        "in steps": app.steps._pool.threads.outstanding if app.steps else 0,
        "copied bytes": app.copies.kept_bytes,
        "in flight": sum(item.count_requests() for item in apps),
        "connections": sum(len(item.connections) for item in apps),
        "in turns": sum(len(item.turns._waiting) for item in apps),
        "scrapes": len(app._scrapes._waiting) + len(app._scrapes._answered),
    }


def wait_released(server: Server, pid: int) -> dict[str, Any]:
    """Return what a process holds, once that is nothing, or at last if it remains something."""
    path = server.root / f"{_FILE}{pid}"
    deadline = Deadline(_SECONDS)
    while True:
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        while not path.exists():
            assert not deadline.is_over(), server.log()
            time.sleep(0.01)
        held_now = {name: held for name, held in json.loads(path.read_text()).items() if held}
        if not held_now or deadline.is_over():
            return held_now
        time.sleep(0.1)
