"""The cost of each node, measured by ONNX Runtime's profiler on the CPU provider.

2% of the nodes can be 90% of the work, so fallback is weighted by time. The graph is profiled
before ONNX Runtime fuses nodes for the CPU, since only then its labels agree with those of
placements. Times are of the CPU and one sample: an estimate of work, not of the time on another
device.
"""

import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, Final

import onnxruntime as ort
from enginewright_contract.manifest import NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Recipe

from enginewright_runtime.core import shared_results
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.labels import format_label, strip_fusion
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.shape_nodes import function_calls
from enginewright_runtime.graph.shapes import opt_sample
from enginewright_runtime.proof.golden_run import run_sample
from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.base import RECORD_ASSIGNMENT
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.reference import load_reference
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import read_signature

_SECONDS: Final = 1.0  # of runs; the first one is always completed
_MOST_RUNS: Final = 6  # the first is a warm-up
# The profiler uses 2 kB of memory for every execution of a node, and the body of a loop may be executed
# thousands of times, so such runs are terminated.
_REPEATING: Final = frozenset({"Loop", "Scan"})
_REPEATING_SECONDS: Final = 1.0
_KERNEL: Final = "_kernel_time"  # suffix of the name of a node's event
_GRAPH: Final = "SequentialExecutor::Execute"  # a graph or body, with the profiler's overhead
_TRUNCATION: Final = 0.5  # us: mean error of durations, which are truncated to integers
_DIGITS: Final = 7


def measure(model: Path, inputs: Path, recipe: Recipe) -> tuple[NodeCost, ...]:
    """Profile a model with golden inputs, an .npz file of arrays SAMPLE/INPUT, in a child process.

    Shares sum to 1. `count` is of nodes as in placements: 0 if ONNX Runtime folds or fuses the
    node. Raises Timeout when the model's loops run too long; SessionError.
    """
    # created here, so that it is removed even if the child crashes
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        return shared_results.run_shared(
            Call(profile, "profiling the model on backend cpu", Limits.of_model()),
            shared_results.ResultKey(model, recipe, {"inputs": file_sha256(inputs).sha256}),
            model,
            inputs,
            folder,
        )


def profile(model: Path, inputs: Path, folder: str) -> tuple[NodeCost, ...]:
    """Profile. Called in a child process."""
    samples = read_arrays(inputs)
    feeds = samples[opt_sample(list(samples))]
    try:
        session = load_reference(model, "BASIC", _options(folder))
    except SessionError:
        # so it is served at this level too
        session = load_reference(model, LOWEST, _options(folder))
    counts = Counter(
        format_label(node.name, node.op_type)
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
    )
    repeats = any(name.endswith(f"({kind})") for name in counts for kind in _REPEATING)
    runs = _run(session, feeds, _REPEATING_SECONDS if repeats else _SECONDS, cut_off=repeats)
    events = _events(Path(session.end_profiling()), runs)
    spent = _medians([_time_by_label(run, counts) for run in events])
    total = sum(spent.values())
    if counts and not total:
        raise StageFailure(Reason.INTERNAL_ERROR, "the profile contains no node", remedy="")
    costs = [
        NodeCost(label=name, count=count, share=round(spent[name] / total, _DIGITS))
        for name, count in counts.items()
    ]
    removed = [NodeCost(label=name, count=0, share=0.0) for name in _find_removed(model, counts)]
    return (*costs, *removed)


def _options(folder: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    options.enable_profiling = True
    options.profile_file_prefix = f"{folder}/run"
    return options


@dataclass
class _Stoppable:
    """A session for `Runner` whose run can be terminated from another thread."""

    session: ort.InferenceSession
    options: ort.RunOptions

    def run(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        return self.session.run(outputs, feeds, self.options)

    def run_with_ort_values(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - likewise
        return self.session.run_with_ort_values(outputs, feeds, self.options)


def _run(session: ort.InferenceSession, feeds: Arrays, seconds: float, *, cut_off: bool) -> int:
    options = ort.RunOptions()
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    runner = Runner(_Stoppable(session, options), signature)
    stop = threading.Timer(seconds, lambda: setattr(options, "terminate", True))
    stop.daemon = True
    if cut_off:
        stop.start()
    began = time.monotonic()
    runs = 0
    try:
        while runs < _MOST_RUNS and (runs == 0 or time.monotonic() - began < seconds):
            run_sample(runner, signature, feeds)
            runs += 1
    except Exception as error:
        # ONNX Runtime's exceptions have no common class
        if not options.terminate:
            raise SessionError(str(error)) from error
        if runs == 0:
            raise StageFailure(
                Reason.TIMEOUT,
                f"one run of its loops takes more than {seconds:.0f} s",
                remedy="",
            ) from error
    finally:
        stop.cancel()
    return runs


@dataclass(frozen=True)
class _Event:
    """One execution of a node or of a graph; it contains those of its bodies or its nodes."""

    name: str  # of the node, as in the profile
    operator: str  # "" of a graph
    index: str
    start: int  # us
    duration: int


def _events(path: Path, runs: int) -> list[list[_Event]]:
    events: list[_Event] = []
    periods: list[tuple[int, int]] = []
    for entry in _entries(path):
        if entry["name"] == "model_run":
            periods.append((entry["ts"], entry["ts"] + entry["dur"]))
        elif entry["cat"] == "Node" and entry["name"].endswith(_KERNEL):
            name, node = entry["name"].removesuffix(_KERNEL), entry["args"]
            events.append(
                _Event(name, node["op_name"], node["node_index"], entry["ts"], entry["dur"])
            )
        elif entry["name"] == _GRAPH:
            events.append(_Event(_GRAPH, "", "", entry["ts"], entry["dur"]))
    periods = periods[:runs]
    if not periods:
        raise StageFailure(Reason.INTERNAL_ERROR, "the profile contains no run", remedy="")
    return [
        [event for event in events if first <= event.start <= last]
        for first, last in periods[1 if len(periods) > 1 else 0 :]
    ]


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each label, since other processes may slow down single runs."""
    return {name: median_low(run[name] for run in runs) for name in runs[0]}


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries, one per line: a profile may be too large to parse at once."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("{"):
                yield json.loads(line.rstrip().removesuffix(","))


def _time_by_label(events: Iterable[_Event], counts: Counter[str]) -> dict[str, float]:
    """Return the time of each label of `counts` in us; that of a node with a body excludes the body."""
    spent: dict[str, float] = defaultdict(float)
    around: list[tuple[_Event, str]] = []
    # an event is written when it ends, so of two with equal times the later one contains the other
    order = sorted(enumerate(events), key=lambda pair: (pair[1].start, -pair[1].duration, -pair[0]))
    for _, event in order:
        while around and event.start >= around[-1][0].start + around[-1][0].duration:
            around.pop()
        name = _label(event, counts)
        spent[name] += event.duration + (_TRUNCATION if event.operator else 0)
        if around:
            spent[around[-1][1]] -= event.duration
        around.append((event, name))
    return defaultdict(float, {name: max(0.0, spent[name]) for name in counts})


def _label(event: _Event, counts: Counter[str]) -> str:
    name = format_label(event.name, event.operator)
    if name not in counts and event.name == f"{event.operator}_{event.index}":
        return format_label("", event.operator)  # the profiler's name of a node without a name
    return name


def _find_removed(path: Path, counts: Counter[str]) -> list[str]:
    """Return labels of the file that placements do not show, because the node was removed.

    The cost of a node that ONNX Runtime replaced by others, as it does for functions, is that of
    the others.
    """
    model = graphs.parse(path)
    there = Counter(format_label(node.name, node.op_type) for node in graphs.walk_nodes(model))
    kept = {name for count in counts if (name := strip_fusion(count))}
    added = [count for count in counts if count not in there and not strip_fusion(count)]
    functions = {format_label(node.name, node.op_type) for node in function_calls(model)}
    return [
        name
        for name in there
        if name not in counts
        and not name.endswith("(Constant)")
        and name.rpartition(" (")[0] not in kept
        and not (added and name in functions)
    ]
