"""The benchmark of serving counts only right answers, and judges targets by what was measured."""

import dataclasses
import tomllib

import numpy as np
import pytest

from bench.serving import environments
from bench.serving.exchange import BINARY, GRPC
from bench.serving.load import Figures, LoadError, Moment, figures, inspect
from bench.serving.report import conditions, is_disturbed, problems
from bench.serving.results import Aging, Bare, Results
from bench.serving.servers import FLOOR, FURNACE, OURS, SERVERS, TRITON
from bench.serving.soak import Held, growth_of
from bench.serving.targets import TARGETS

SUMMARY = """
requests: {total} total, {total} started, {done} done, {done} succeeded, {failed} failed, 0 errored, 0 timeout
status codes: {done} 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.0MB (1000000) total, 4KB (4096) headers (space savings 0.00%), 1KB ({data}) data
"""


def log(*rows: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(rows, np.int64).reshape(-1, 3)


def test_complete_answers_count() -> None:
    inspect(SUMMARY.format(total=2, done=2, failed=0, data=200), log((0, 200, 5), (5, 200, 5)), 100)


@pytest.mark.parametrize(
    ("output", "lines", "why"),
    [
        (SUMMARY.format(total=1, done=1, failed=0, data=100), log((0, 503, 5)), "503"),
        (SUMMARY.format(total=1, done=1, failed=0, data=0), log((0, 200, 5)), "0 bytes"),
        (SUMMARY.format(total=2, done=1, failed=1, data=100), log((0, 200, 5)), "1 of 2"),
        (SUMMARY.format(total=1, done=0, failed=0, data=0), log(), "no answers"),
        ("could not connect", log(), "could not connect"),
    ],
    ids=["status", "short", "failed", "none", "unreachable"],
)
def test_other_answers_fail(
    output: str, lines: np.ndarray[tuple[int, ...], np.dtype[np.int64]], why: str
) -> None:
    with pytest.raises(LoadError, match=why):
        inspect(output, lines, 100)


def moment(time: float, server: float) -> Moment:
    return Moment(time=time, server=server, generator=0.0, busy=server)


def test_only_requests_that_end_within_the_window_count() -> None:
    warm = (9_000_000, 200, 999_999)
    inside = [(9_999_990, 200, 10), (10_000_000, 200, 30), (10_000_000, 200, 20)]
    late = (11_999_999, 200, 1)
    summary = figures(log(warm, *inside, late), moment(10, 1.0), moment(12, 1.6))
    assert (summary.requests, summary.per_second, summary.p50_us) == (3, 1.5, 20)
    assert summary.cpu_us == pytest.approx(0.2e6)
    assert summary.others == 0


def test_other_programs_on_the_cores_are_seen() -> None:
    after = dataclasses.replace(moment(12, 1.0), busy=3.0)
    summary = figures(log((11_000_000, 200, 1)), moment(10, 0.0), after)
    assert summary.others > 0
    run = make_results()
    run.row("tiny", OURS, BINARY).figures[8] = summary
    assert problems(run)[0].startswith("DISTURBED")
    assert not is_disturbed(make_results())


def at(rate: float, *, cpu: float = 10.0) -> Figures:
    return Figures(requests=1, per_second=rate, p50_us=100.0, p99_us=200.0, cpu_us=cpu, others=0.0)


def make_results() -> Results:
    run = Results(about={})
    run.bare["tiny"] = Bare(title="t", model_mb=1.0, one_us=5.0, batch_us=8.0, batch=8)
    for server, rate in ((OURS, 400.0), (TRITON, 100.0)):
        row = run.row("tiny", server, BINARY)
        row.add(32, at(rate))
        row.memory_mb = 50.0
    return run


def judge_results(run: Results) -> dict[tuple[str, str], tuple[float | None, str]]:
    return {(target.model, target.what): target.outcome(run) for target in TARGETS}


def test_targets_compare_within_the_run() -> None:
    judgements = judge_results(make_results())
    assert judgements["tiny", "requests/s at 32, over Triton"] == (4.0, "pass")
    assert judgements["tiny", "CPU per request at 32, over `session.run`"] == (2.0, "pass")
    assert judgements["tiny", "memory, model excluded"] == (49.0, "pass")


def test_native_servers_and_an_aged_one_are_compared_with_ours() -> None:
    run = make_results()
    for server, rate in ((FURNACE, 160.0), (FLOOR, 1000.0)):
        run.row("tiny", server, BINARY).add(32, at(rate))
    run.aging["tiny"] = Aging(rate_ratio=0.9, p50_ratio=1.0, turns=3, throttled_by="SIGSTOP")
    judgements = judge_results(run)
    assert judgements["tiny", "requests/s at 32, over furnace"] == (2.5, "pass")
    assert judgements["tiny", "requests/s at 32, over the floor"] == (0.4, "miss")
    assert judgements["tiny", "requests/s at 32, aged, over fresh"] == (0.9, "miss")
    assert judgements["tiny", "p50 at 1, over furnace"] == (None, "not measured")
    run.row("tiny", OURS, BINARY).add(1, at(10.0))
    run.row("tiny", FURNACE, BINARY).add(1, dataclasses.replace(at(10.0), p50_us=80.0))
    run.aging["batching"] = Aging(rate_ratio=1.0, p50_ratio=1.05, turns=3, throttled_by="SIGSTOP")
    judgements = judge_results(run)
    assert judgements["tiny", "p50 at 1, over furnace"] == (1.25, "miss")
    assert judgements["batching", "p50 at 1, aged, over fresh"] == (1.05, "pass")


def test_the_rate_of_a_model_is_compared_with_that_of_its_runs_alone() -> None:
    run = make_results()
    run.bare["real"] = Bare(title="r", model_mb=3.0, one_us=10_000.0, batch_us=8e4, batch=8)
    run.row("real", OURS, BINARY).add(32, at(98.0))
    value, outcome = judge_results(run)["real", "requests/s at 32, over those of `session.run`"]
    assert value == pytest.approx(0.98)
    assert outcome == "pass"


def test_how_a_server_was_aged_is_told_where_it_was() -> None:
    run = make_results()
    run.about |= {"date": "d", "cpu": "c", "cores": 2, "network": "n", "rounds": 3}
    run.about["versions"] = {"ort": "2"}
    assert conditions(run).endswith("rounds; ort 2.")
    run.aging["tiny"] = Aging(0.9, 1.0, 3, "cpu.cfs_quota_us")
    assert "a fifth of a core, by cpu.cfs_quota_us, before" in conditions(run)
    run.add_batch("tiny", OURS, 8)
    run.add_batch("tiny", OURS, 16)
    assert conditions(run).endswith("at each start: tiny, Enginewright 8, 16.")


def test_native_servers_are_built_from_crates_of_the_public_registry_alone() -> None:
    lock = tomllib.loads((environments.PEERS / "native/Cargo.lock").read_text())
    sources = {package.get("source") for package in lock["package"]}
    assert sources == {None, "registry+https://github.com/rust-lang/crates.io-index"}
    assert environments.read_locked_crates()["ort"].startswith("2.")
    assert any(server.environment == environments.NATIVE for server in SERVERS)


def test_a_bound_is_missed_on_its_other_side() -> None:
    run = make_results()
    run.row("tiny", OURS, BINARY).figures[32] = at(200.0, cpu=46.0)
    judgements = judge_results(run)
    assert judgements["tiny", "requests/s at 32, over Triton"] == (2.0, "miss")
    assert judgements["tiny", "CPU per request at 32, over `session.run`"] == (9.2, "miss")


def test_unmeasured_figure_neither_passes_nor_misses() -> None:
    judgements = judge_results(make_results())
    assert judgements["tiny", "gRPC requests/s at 32, over Triton"] == (None, "not measured")
    run = make_results()
    run.row("tiny", OURS, GRPC).add(32, at(150.0))
    assert judge_results(run)["tiny", "gRPC requests/s at 32, over Triton"][1] == "not measured"
    run.row("tiny", TRITON, GRPC).add(32, at(100.0))
    assert judge_results(run)["tiny", "gRPC requests/s at 32, over Triton"] == (1.5, "pass")


def test_the_quicker_round_counts() -> None:
    row = make_results().row("tiny", OURS, BINARY)
    row.add(8, at(10.0))
    row.add(8, at(30.0))
    row.add(8, at(20.0))
    assert row.figures[8].per_second == 30.0


def test_growing_server_is_a_problem() -> None:
    before = [Held(90.0, 3, 15), Held(95.0, 3, 17)]
    assert not growth_of([*before, Held(99.0, 3, 17), Held(92.0, 2, 19)])
    assert growth_of([*before, Held(90.0, 3, 15), Held(101.0, 4, 20)]) == (
        "MB of memory by 6.0, threads by 1.0, open files by 3.0"
    )
