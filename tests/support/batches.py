"""Batches without the clock: a server under test forms them, however busy the machine is at its start."""

from typing import Final

from enginewright_serving.server.startup import batch_proof, padding_proof

# for `Server(before=...)`
BATCHES_PAY: Final = "from tests.support import batches; batches.let_batches_pay()\n"


def let_batches_pay() -> None:
    """Use the largest batch that has run in this process, and padding, whether they are faster or not."""

    def choose_largest(times: dict[int, float], single: float) -> int:
        del single
        return max(times)

    batch_proof._worthwhile = choose_largest
    padding_proof._GAIN = float("inf")
