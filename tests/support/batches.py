"""Batches without the clock: a server under test forms them, however busy the machine is at its start."""

from typing import Final

from enginewright_serving.server.startup import batch_proof, padding_proof

# for `Server(before=...)`
BATCHES_PAY: Final = "from tests.support import batches; batches.let_batches_pay()\n"
PADDING_IS_TRUSTED: Final = "batches.trust_padding()\n"  # after `BATCHES_PAY`


def trust_padding() -> None:
    """Pad requests without a proof that outputs stay the same."""
    padding_proof.PaddingProver._require_same = lambda *_: None  # type: ignore[method-assign]  # for this process


def let_batches_pay() -> None:
    """Use the largest batch that has run in this process, and padding, at all lengths, whether they are faster or not."""

    def choose_largest(times: dict[int, float], single: float) -> int:
        del single
        return max(times)

    batch_proof._worthwhile = choose_largest
    batch_proof._GAIN = padding_proof._GAIN = float("inf")
