"""Clients of all kinds at once, which leave at any time: afterwards the server holds nothing for them."""

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from enginewright_contract.serving_options import AccessLogTask
from enginewright_contract.task import ServeTask

from tests.integration.test_server_processing import with_steps
from tests.support import processing
from tests.support.accounts import shows_accounts, wait_released
from tests.support.certificates import Authority
from tests.support.mixture import Mixture
from tests.support.secret_volumes import write_secret
from tests.support.serving import (
    Server,
    has_runs_at_the_same_time,
    linear_model,
    write_artifact,
)

CLIENTS = 5
ACTS = 30
TOKEN = "t0ken-of-the-shop"
SAMPLES = [{"x": np.ones((2, 8), np.float32)}]
LIMITS = {"max_queue": 8, "request_seconds": 3.0}
SETTINGS: dict[str, Any] = {
    "inflight_bytes": 8 << 20,
    "body_bytes": 4 << 20,
    "head_seconds": 1.0,
    "transfer_window": 1.0,
    "sweep_seconds": 0.05,
    "step_seconds": 2.0,
}


def nothing_is_left(
    root: Path, task: ServeTask, python: str | Path = sys.executable, **client: Any
) -> None:
    """Let clients do anything, and check what the server holds then."""
    before = shows_accounts(root) + has_runs_at_the_same_time(2)
    task = task.model_copy(update=LIMITS)
    with Server(root, task, python=python, before=before, **SETTINGS) as server:
        clients = [Mixture(server, seed, **client) for seed in range(CLIENTS)]
        threads = [threading.Thread(target=mixture.run, args=(ACTS,)) for mixture in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers = sum((mixture.answers for mixture in clients), Counter[str]())
        assert answers["200"] > 0
        assert answers["OK"] > 0
        assert wait_released(server, server.process.pid) == {}
        assert server.get("/v2/health/ready").status == 200
        log = server.log()
    assert "Traceback" not in log
    assert "unexpected error" not in log


def test_with_tls_tokens_batches_and_runs_at_the_same_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    write_secret(tmp_path / "run/enginewright/tls", **authority.issue().files)
    write_secret(tmp_path / "run/enginewright/tokens", shop=TOKEN)
    fields = {
        "tls": True,
        "auth": True,
        "concurrent_runs": None,
        "batch_delay_seconds": 0.01,
        "access_log": AccessLogTask(share=0.5, failed="All"),
    }
    task = write_artifact(tmp_path, linear_model(), SAMPLES).model_copy(update=fields)
    tls = authority.path.read_bytes()
    nothing_is_left(tmp_path, task, images=False, token=TOKEN, tls=tls)


def test_with_steps(tmp_path: Path) -> None:
    sample = {"pixels": np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)}
    before, after = [processing.decoder()], [processing.labeller()]
    task = with_steps(tmp_path, before, processing.classifier(), after, [sample])
    nothing_is_left(tmp_path, task, images=True)
