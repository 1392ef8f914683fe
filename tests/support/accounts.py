"""What a server process holds for its clients, read from inside of it."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.serving import Server
from tests.support.waiting import Deadline

_FILE = "accounts.json"
_SECONDS = 60.0


def shows_accounts(root: Path) -> str:
    """Return code for `Server(before=...)`: SIGUSR2 makes a process write what it holds."""
    return f"""
import asyncio, json, os, signal
from enginewright_serving.server.endpoints import Endpoints

path = {str(root / _FILE)!r} + str(os.getpid())
serve_model = Endpoints.serve_model

def accounts(endpoints):
    apps = app, grpc = endpoints.app, endpoints.grpc
    account, inference = app.inflight.account, app.inference
    worker = inference._serving.worker
    return {{
        "bytes": account.total,
        "transfers": len(account._transfers),
        "outstanding": inference.outstanding,
        "queued": worker.depth,
        "with a timeout": len(inference.results.waiting),
        "probes": inference._probes,
        "decoded or encoded": app.codec_thread.outstanding,
        "in steps": app.steps._pool.threads.outstanding if app.steps else 0,
        "copied bytes": app.copies.kept_bytes,
        "in flight": sum(each._in_flight() for each in apps),
        "connections": sum(len(each.connections) for each in apps),
        "in turns": sum(len(each.turns._waiting) for each in apps),
        "scrapes": len(app._scrapes._waiting) + len(app._scrapes._answered),
        "tasks": len(asyncio.all_tasks()) - tasks,
        "dead threads": not worker.alive(),
    }}

def remember(endpoints, model):
    global tasks
    serve_model(endpoints, model)
    tasks = len(asyncio.all_tasks())
    def show():
        with open(path + ".new", "w") as file:
            json.dump(accounts(endpoints), file)
        os.replace(path + ".new", path)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, show)

Endpoints.serve_model = remember
"""


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
