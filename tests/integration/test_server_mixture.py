"""Clients of all kinds at once, which leave at any time: every answer is the request's own, every request is counted."""

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
from tests.support.batches import BATCHES_PAY
from tests.support.certificates import Authority
from tests.support.mixture import Mixture, read_counts
from tests.support.process_memory import memory_of
from tests.support.questions import MOST_LENGTH, ask_for_a_label, ask_to_triple, triple
from tests.support.secret_volumes import write_secret
from tests.support.serving import Server, has_runs_at_the_same_time, write_artifact
from tests.support.tally import Counts, Tally

CLIENTS = 5
ACTS = 15  # of a client, twice
GROWTH = (
    64 << 20
)  # of the server's memory from the first time to the second, whose requests are others
TOKEN = "t0ken-of-the-shop"
LIMITS = {"max_queue": 8, "request_seconds": 3.0}
SETTINGS: dict[str, Any] = {
    "inflight_bytes": 8 << 20,
    "body_bytes": 4 << 20,
    "head_seconds": 1.0,
    "transfer_window": 1.0,
    "sweep_seconds": 0.05,
    "step_seconds": 2.0,
}


def act_together(clients: list[Mixture]) -> None:
    threads = [threading.Thread(target=client.run, args=(ACTS,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve_all_kinds(
    root: Path, task: ServeTask, python: str | Path = sys.executable, **client: Any
) -> Counts:
    """Let clients do anything, and check the answers, what the server counted, which is returned, and what it holds then."""
    before = shows_accounts(root) + has_runs_at_the_same_time(2) + BATCHES_PAY
    task = task.model_copy(update=LIMITS)
    with Server(root, task, python=python, before=before, **SETTINGS) as server:
        clients = [Mixture(server, seed, **client) for seed in range(CLIENTS)]
        memory = []
        before_all = read_counts(server)
        for _ in range(2):
            act_together(clients)
            assert wait_released(server, server.process.pid) == {}
            memory.append(memory_of(server.process.pid))
        together = Tally()
        for mixture in clients:
            together.add(mixture.tally)
        answers = sum((mixture.answers for mixture in clients), Counter[str]())
        counts = read_counts(server)
        assert together.wrong == []
        assert together.list_miscounts(before_all, counts) == [], answers
        assert answers["200"] > 0
        assert answers["OK"] > 0
        assert memory[1] - memory[0] < GROWTH
        assert server.get("/v2/health/ready").status == 200
        log = server.log()
    assert "Traceback" not in log
    assert "unexpected error" not in log
    return counts


def test_with_tls_tokens_batches_and_runs_at_the_same_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    write_secret(tmp_path / "run/enginewright/tls", **authority.issue().files)
    write_secret(tmp_path / "run/enginewright/tokens", shop=TOKEN)
    fields = {
        "tls": True,
        "auth": True,
        "concurrent_runs": None,
        "batch_delay_seconds": 0.01,
        "batch_padding": {"x": 0},
        "access_log": AccessLogTask(share=0.5, failed="All"),
    }
    samples = [{"x": np.arange(1, n + 1, dtype=np.int32).reshape(1, n)} for n in (MOST_LENGTH, 5)]
    task = write_artifact(tmp_path, triple(), samples).model_copy(update=fields)
    tls = authority.path.read_bytes()
    counts = serve_all_kinds(tmp_path, task, source=ask_to_triple, token=TOKEN, tls=tls)
    assert counts.requests_in_runs > counts.runs, "some ran together"


def test_with_steps(tmp_path: Path) -> None:
    sample = {"pixels": np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)}
    before, after = [processing.decoder()], [processing.labeller()]
    task = with_steps(tmp_path, before, processing.classifier(), after, [sample])
    serve_all_kinds(tmp_path, task, source=ask_for_a_label, has_steps=True)
