"""What the server's process keeps of a large request and its response."""

import time
from pathlib import Path

import numpy as np

from tests.support.broken_models import parse_text
from tests.support.process_memory import memory_of
from tests.support.serving import Server, binary_inputs, write_artifact
from tests.support.waiting import until

MIB = 1024 * 1024
LARGE = 25_000_000  # elements: 100 MB of a request, and of its response
SOON = """
from enginewright_serving.server.startup import arena
arena._PAUSE = 0.5
"""


# fault: Servers | a large request or response takes memory, which allocators keep for the next | the first run after a
#   pause without large ones has them return it | within 10 s and one golden inference
def test_the_memory_of_a_large_response_is_given_back(tmp_path: Path) -> None:
    negative = parse_text("(float[n] x) => (float[n] y) { y = Neg(x) }")
    task = write_artifact(tmp_path, negative, [{"x": np.ones(3, np.float32)}])
    with Server(tmp_path, task, before=SOON, fresh=True, body_bytes=4 * LARGE + MIB) as server:

        def ask(count: int) -> None:
            answer = server.post(*binary_inputs(x=np.ones(count, np.float32)))
            assert answer.status == 200
            assert len(answer.body) >= 4 * count

        def is_given_back() -> bool:
            ask(10)
            return memory_of(server.process.pid) < before + 32 * MIB

        ask(10)
        before = memory_of(server.process.pid)
        ask(LARGE)
        assert memory_of(server.process.pid) > before + 64 * MIB, "the arena keeps its largest run"
        time.sleep(1)  # the pause
        until(is_given_back, "the arena's memory is given back", seconds=20)
