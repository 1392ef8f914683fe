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


def test_the_memory_of_a_run_that_fails_is_given_back(tmp_path: Path) -> None:
    """Of a request of 4 MB, as of a text with too many tokens, whose values take 64 times as much before one is refused."""
    model = parse_text(
        """(float[n] x) => (float[m] y)
            <int64[1] last = {1}, int64[2] form = {-1, 10}, int64[1] width = {64}> {
        column = Unsqueeze(x, last) ones = ConstantOfShape(width) one = Cos(ones)
        wide = Mul(column, one) tens = Reshape(wide, form)
        y = ReduceMax <axes = [1], keepdims = 0> (tens) }"""
    )
    task = write_artifact(tmp_path, model, [{"x": np.ones(10, np.float32)}])
    with Server(tmp_path, task, before=SOON, fresh=True) as server:

        def ask(count: int) -> int:
            return server.post(*binary_inputs(x=np.ones(count, np.float32))).status

        def is_given_back() -> bool:
            assert ask(10) == 200
            return memory_of(server.process.pid) < before + 32 * MIB

        assert ask(10) == 200
        before = memory_of(server.process.pid)
        assert ask(1_000_001) == 400
        assert memory_of(server.process.pid) > before + 128 * MIB, "the arena keeps its memory"
        time.sleep(1)  # the pause
        until(is_given_back, "the arena's memory is given back", seconds=20)
