"""A child that ends at a limit of memory or disk, or of something else."""

import errno
import os
import signal
import sys

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import UNLIMITED, Call, Limits

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


def fill() -> None:
    """Meet a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run_beside(held: int, megabytes: int, how: str, limit: int | None) -> None:
    """Run `use_and_end` in a child of a process that holds memory itself."""
    mine = bytearray(b"\1") * (held << 20)
    Call(use_and_end, "trying", Limits(memory_bytes=limit)).run(megabytes, how)
    del mine


def ends(megabytes: int, how: str, limits: Limits, *, held: int = 0) -> StageFailure:
    """Return how the child ends; its parent is a fresh process, for pytest's own may be large."""
    with pytest.raises(StageFailure) as caught:
        Call(run_beside, "running beside").run(held, megabytes, how, limits.memory_bytes)
    return caught.value


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGABRT", "code"])
def test_at_its_limit_a_child_dies_of_it(how: str) -> None:
    failure = ends(660, how, Limits(memory_bytes=LIMIT))
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert "trying reached its memory limit" in failure.message


@pytest.mark.parametrize(
    ("how", "reported"),
    [
        ("SIGSEGV", "trying crashed with SIGSEGV"),
        ("code", "trying: the process exited with code 1; last output: cannot go on"),
    ],
)
@pytest.mark.parametrize("limits", [Limits(memory_bytes=LIMIT), UNLIMITED])
def test_below_it_a_child_crashes(how: str, reported: str, limits: Limits) -> None:
    failure = ends(20, how, limits)
    assert failure.reason is Reason.BACKEND_CRASHED
    assert reported in failure.message


def test_memory_of_the_parent_is_not_blamed_on_a_child() -> None:
    failure = ends(20, "SIGSEGV", Limits(memory_bytes=LIMIT), held=900)
    assert failure.reason is Reason.BACKEND_CRASHED


def test_allocations_past_the_limit_fail_in_the_child() -> None:
    failure = ends(900, "SIGSEGV", Limits(memory_bytes=LIMIT))
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert "trying ran out of memory" in failure.message


def test_a_disk_that_is_full_in_the_child_is_one_here() -> None:
    with pytest.raises(StageFailure) as caught:
        Call(fill, "trying").run()
    assert caught.value.reason is Reason.STORAGE_FULL
    assert caught.value.cause == "trying ran out of disk space"
