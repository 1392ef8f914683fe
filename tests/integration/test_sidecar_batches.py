"""The sidecar sees what batches make of answers, which the server has proven for one sample at its start."""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.integration.test_server_padding import PADDING, encoder, text
from tests.support.batches import BATCHES_PAY, PADDING_IS_TRUSTED
from tests.support.broken_models import initializer, parse_text
from tests.support.serving import Feeds, Server
from tests.support.sidecar import Proxy, Sidecar, artifact

QUICK: Final = 0.1  # of the intervals
# Values of all rows; four times the last ones are beyond LIMIT
SAMPLES: Final[list[Feeds]] = [
    {"x": np.full((1, 4), value, np.float32)} for value in (0.5, 3.0, 4.0)
]
LIMIT: Final = 8.0


def forgiving(limit: float) -> onnx.ModelProto:
    """Return x [batch, 4] -> y, what exceeds 1 halved if some row of the batch exceeds `limit`.

    The first sample is the same beside any other. So is the last one, enlarged, beside the first one and itself.
    """
    return parse_text(
        """(float[batch, 4] x) => (float[batch, 4] y) {
        largest = ReduceMax <keepdims = 0> (x) far = Greater(largest, limit) share = Cast <to = 1> (far)
        more = Sub(x, one) over = Relu(more) all = Mul(over, share) half = Mul(all, part) y = Sub(x, half) }""",
        initializer("limit", limit),
        initializer("one", 1.0),
        initializer("part", 0.5),
    )


def has_batches(server: Server) -> bool:
    return bool(server.get("/v2/models/m/execution").json()["batch_rows"] > 1)


# fault: Outputs | an answer depends on the other requests in its batch, which the start did not show |
#   check `golden`: a sample in a batch with other inputs | a few golden inferences
def test_answers_that_change_in_a_batch_are_wrong(tmp_path: Path) -> None:
    task = artifact(tmp_path, forgiving(LIMIT), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Sidecar(tmp_path, task, server.port, pace=QUICK) as sidecar,
    ):
        assert has_batches(server), "the server has found nothing at its start"
        golden = sidecar.until_state(Check.GOLDEN, "failed")
        assert golden.reason is Reason.PARITY_FAILED
        assert ", in a batch with other inputs, is " in golden.message
        assert "golden sample 's0'" not in golden.message
        sidecar.until(lambda: not sidecar.is_ready(), "unready")


def test_honest_answers_are_right_in_batches_too(tmp_path: Path) -> None:
    task = artifact(tmp_path, forgiving(1e9), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Proxy(server.port) as proxy,
        Sidecar(tmp_path, task, proxy.port, pace=QUICK) as sidecar,
    ):
        assert has_batches(server)
        enlarged = np.float32(16).tobytes()

        def has_paired() -> bool:
            return sum(tail.endswith(enlarged) for tail in proxy.asked) >= len(SAMPLES)

        sidecar.until(has_paired, "a round in batches", 60)
        golden = sidecar.check(Check.GOLDEN)
        assert (golden.state, golden.message) == ("ok", "3 golden samples passed")
        assert sidecar.is_ready()


def averaging() -> onnx.ModelProto:
    """Return the mean over all positions, which ignores the mask."""
    return parse_text(
        """(int64[batch, n] ids, int64[batch, n] mask) => (float[batch, 4] pooled) {
        words = Gather(table, ids) pooled = ReduceMean <axes = [1], keepdims = 0> (words) }""",
        initializer("table", np.random.default_rng(3).random((50, 4), np.float32)),
    )


def pads(server: Server) -> bool:
    return "padding" in server.get("/v2/models/m/execution").json()


# fault: Outputs | an answer changes when its request is padded, which the start did not show |
#   check `golden`: a sample padded beside a longer one | a few golden inferences
def test_answers_that_change_by_padding_are_wrong(tmp_path: Path) -> None:
    task = artifact(tmp_path, averaging(), [text(20, 1), text(5, 2)])
    task = task.model_copy(update={"batch_padding": PADDING})
    with (
        Server(tmp_path, task, before=BATCHES_PAY + PADDING_IS_TRUSTED) as server,
        Sidecar(tmp_path, task, server.port, pace=QUICK) as sidecar,
    ):
        assert pads(server)
        golden = sidecar.until_state(Check.GOLDEN, "failed")
        assert golden.reason is Reason.PARITY_FAILED
        assert "golden sample 's1', padded in a batch with other inputs, is " in golden.message


def test_honest_answers_are_right_when_they_are_padded(tmp_path: Path) -> None:
    task = artifact(tmp_path, encoder(), [text(20, 1), text(5, 2)])
    task = task.model_copy(update={"batch_padding": PADDING})
    with (
        Server(tmp_path, task, before=BATCHES_PAY) as server,
        Proxy(server.port) as proxy,
        Sidecar(tmp_path, task, proxy.port, pace=QUICK) as sidecar,
    ):
        assert pads(server)
        blank = np.int64(0).tobytes()  # the end of a mask that is padded
        sidecar.until(lambda: any(tail == blank for tail in proxy.asked), "a padded sample", 60)
        seen = len(proxy.asked)
        sidecar.until(lambda: len(proxy.asked) > seen + 2, "its result")
        golden = sidecar.check(Check.GOLDEN)
        assert (golden.state, golden.message) == ("ok", "2 golden samples passed")
