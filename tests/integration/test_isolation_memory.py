"""A child that dies while it is held to a limit of memory: of that, or of something else."""

import os
import signal
import sys

import pytest
from enginewright.contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import UNLIMITED, Limits, run_isolated

LIMIT = 800 << 20  # of which what the fork server has imported is a part


def use_and_end(megabytes: int, how: str) -> None:
    """Take memory, touch it, and end as native code does that meets an error."""
    held = bytearray(megabytes << 20)
    for index in range(0, len(held), 4096):
        held[index] = 1
    if how == "code":
        print("cannot go on", file=sys.stderr, flush=True)
        os._exit(1)
    os.kill(os.getpid(), getattr(signal, how))


def run_beside(held: int, megabytes: int, how: str, limit: int | None) -> None:
    """Run `use_and_end` in a child of a process that holds memory itself."""
    mine = bytearray(b"\1") * (held << 20)
    run_isolated(
        "tests.integration.test_isolation_memory:use_and_end",
        "trying",
        limits=Limits(memory_bytes=limit),
        megabytes=megabytes,
        how=how,
    )
    del mine


def ends(megabytes: int, how: str, limits: Limits, *, held: int = 0) -> StageFailure:
    """Return how the child ends; its parent is a fresh process, for pytest's own may be large."""
    with pytest.raises(StageFailure) as caught:
        run_isolated(
            "tests.integration.test_isolation_memory:run_beside",
            "running beside",
            held=held,
            megabytes=megabytes,
            how=how,
            limit=limits.memory_bytes,
        )
    return caught.value


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGABRT", "code"])
def test_at_its_limit_a_child_dies_of_it(how: str) -> None:
    failure = ends(660, how, Limits(memory_bytes=LIMIT))
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert "trying came to the end of the memory that it may use" in failure.message


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("SIGSEGV", "trying crashed with SIGSEGV"),
        ("code", "trying ended its process with code 1; its last words: cannot go on"),
    ],
)
@pytest.mark.parametrize("limits", [Limits(memory_bytes=LIMIT), UNLIMITED])
def test_below_it_a_child_crashes(how: str, told: str, limits: Limits) -> None:
    failure = ends(20, how, limits)
    assert failure.reason is Reason.BACKEND_CRASHED
    assert told in failure.message


def test_what_its_parent_holds_is_not_blamed_on_a_child() -> None:
    failure = ends(20, "SIGSEGV", Limits(memory_bytes=LIMIT), held=900)
    assert failure.reason is Reason.BACKEND_CRASHED


def test_what_is_past_the_limit_fails_in_the_child() -> None:
    failure = ends(900, "SIGSEGV", Limits(memory_bytes=LIMIT))
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert "trying ran out of memory" in failure.message
