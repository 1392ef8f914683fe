"""Jobs of one model at once: the same results as one after the other, one that fails, what is shown."""

import threading
from typing import TYPE_CHECKING, Any

import pytest
from enginewright_cli.preflight.live import _Live
from enginewright_cli.preflight.stage_line import update_line
from enginewright_cli.preflight.stopping import Stop, Stopped, in_parallel
from onnx import ModelProto
from rich.console import Console
from rich.progress import Progress
from typing_extensions import override

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

# what differs from run to run, and what says how a run went
_TIMES = frozenset({"seconds", "build_seconds", "latency", "engine", "source", "cached"})
_MEASURED = frozenset({"compute_share", "share"})
_FETCHED = ("digest", "size_bytes", "graph")


def lasting(value: Any) -> Any:
    """Return what of a result does not depend on time."""
    if isinstance(value, dict):
        return {
            name: lasting(item) for name, item in value.items() if name not in _TIMES | _MEASURED
        }
    return [lasting(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(broken.relu(), id="good"),
        pytest.param(broken.open_dimensions("batch", "width"), id="open"),
        pytest.param(broken.one_node("Frobnicate", "com.example"), id="refused"),
    ],
)
def test_findings_and_keys_match_each_target_alone(desk: Desk, model: ModelProto) -> None:
    path = desk.save(model)
    _, both = desk.run_json(path, "--target", "sm89,cpu", "--no-cache")
    for target in ("sm89", "cpu"):
        _, alone = desk.run_json(path, "--target", target, "--no-cache")
        # what `validate` says of the model is known once one Job has passed it
        assert {item: both["model"][item] for item in _FETCHED} == {
            item: alone["model"][item] for item in _FETCHED
        }
        expected = {**both["targets"][target], "scope": alone["targets"][target]["scope"]}
        assert lasting(expected) == lasting(alone["targets"][target])
        of_target = [
            {**item, "targets": [target]} for item in both["findings"] if target in item["targets"]
        ]
        assert lasting(of_target) == lasting(alone["findings"])
    assert list(both["targets"]) == ["sm89", "cpu"]


def test_calls_run_at_once_and_no_more_of_them() -> None:
    running, most, lock = 0, 0, threading.Lock()
    met = threading.Barrier(2)

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        met.wait(60)
        with lock:
            running -= 1

    in_parallel([call] * 6, 2, lambda: None)
    assert most == 2


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_exception_ends_the_other_calls(at_once: int) -> None:
    stop, begun = Stop(), []

    def waits() -> None:
        begun.append("waits")
        until(stop.is_set, "the end")
        raise Stopped

    def fails() -> None:
        begun.append("fails")
        raise ValueError("why")

    calls: list[Callable[[], None]] = [fails, waits] if at_once == 1 else [waits, fails, waits]
    with pytest.raises(ValueError, match="why"):
        in_parallel(calls, at_once, stop.set)
    assert stop.is_set()
    assert begun.count("fails") == 1


def test_a_stop_is_set_with_the_one_around_it_and_not_the_other_way() -> None:
    outer = Stop()
    inner, other = Stop(outer), Stop(outer)
    inner.set()
    assert (inner.is_set(), other.is_set(), outer.is_set()) == (True, False, False)
    outer.set()
    assert other.is_set()


def test_each_target_is_shown_with_its_stage() -> None:
    stages: dict[str, str] = {}
    assert update_line(stages, "cpu", "fetch") == "cpu: fetch"
    assert update_line(stages, "sm86, sm89", "fetch") == "cpu: fetch  sm86, sm89: fetch"
    assert update_line(stages, "cpu", "validate") == "cpu: validate  sm86, sm89: fetch"
    assert update_line(stages, "sm89", "build") == "cpu: validate  sm89: build"
    assert update_line(stages, "sm86", "build") == "cpu: validate  sm89: build  sm86: build"


class Slow(Progress):
    """A display in whose first update another stage begins."""

    def __init__(self) -> None:
        super().__init__(console=Console(quiet=True))
        self.shown: list[str] = []
        self.meanwhile: threading.Thread | None = None

    @override
    def update(self, *arguments: Any, **options: Any) -> None:
        if self.meanwhile and self.meanwhile.ident is None:
            self.meanwhile.start()
            self.meanwhile.join(0.5)  # it waits for us
        self.shown.append(options["description"])


def test_the_last_note_is_shown_last() -> None:
    progress = Slow()
    live = _Live(progress, 1)
    live.on_started("a.onnx")
    progress.meanwhile = threading.Thread(target=lambda: live.stage("a.onnx", "sm89", "fetch"))
    live.stage("a.onnx", "cpu", "fetch")
    progress.meanwhile.join(60)
    assert progress.shown == ["cpu: fetch", "cpu: fetch  sm89: fetch"]
