"""What golden inferences cost a steady client, and how soon the sidecar detects a slower model.

Real server and sidecar, with default settings. Two parts:

1. Ratio of one client's p99 with the sidecar to that without, at batch 1, alternating within one run,
   so that other load on the machine affects both.
2. Requests at 0, 50, 90 and 150% of the server's capacity, for some minutes each: no latency check
   may fail. Then the model becomes three times slower, first by itself, then because two other
   processes use its processor: each time a check has to fail within a minute.
"""

import argparse
import http.client
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from enginewright_contract.verdict import Check

from tests.support.serving import Server, slow_model
from tests.support.sidecar import Sidecar, artifact

P99_LIMIT: Final = 1.1  # ratio with the sidecar to without
ALARM_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 120.0  # between two slow-downs
LOADS: Final = (0.0, 0.5, 0.9, 1.5)  # of the server's capacity
CLIENTS: Final = 24  # of each load, which limits concurrent requests
SMALL: Final = 20  # iterations of the small sample; the large one has forty times as many
LATENCY: Final = (Check.PROBE_LATENCY, Check.LIVE_LATENCY)

PROCESSOR: Final = min(os.sched_getaffinity(0))  # of the model
# For `Server(before=...)`: one thread and one processor for the model, which leaves the others to clients;
# from SIGUSR1 to SIGUSR2, each run is done three times.
_SLOWS_DOWN: Final = f"""
import os, signal
os.sched_setaffinity(0, {{{PROCESSOR}}})
import enginewright_runtime.core.limits
from enginewright_runtime.session.runner import Runner
enginewright_runtime.core.limits.threads = lambda: 1
once, times = Runner.run, [1]
def repeated(self, *arguments, **options):
    for _ in range(times[0] - 1):
        once(self, *arguments, **options)
    return once(self, *arguments, **options)
Runner.run = repeated
signal.signal(signal.SIGUSR1, lambda *_: times.__setitem__(0, 3))
signal.signal(signal.SIGUSR2, lambda *_: times.__setitem__(0, 1))
"""


def request(turns: int) -> tuple[str, bytes, dict[str, str]]:
    """Return one inference request, whose duration is proportional to `turns`."""
    body = b'{"inputs":[{"name":"turns","datatype":"INT64","shape":[1],"data":[%d]}]}' % turns
    return "/v2/models/m/infer", body, {}


def ask(connection: http.client.HTTPConnection) -> tuple[int, float]:
    """Send the small sample; return the status and the duration (s)."""
    path, body, headers = request(SMALL)
    began = time.monotonic()
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.monotonic() - began


def steady(port: int, seconds: float, pause: float) -> list[float]:
    """Send requests one after another with `pause` between; return the duration (s) of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, took = ask(connection)
        if status != 200:
            raise SystemExit(f"the steady client got status {status}")
        times.append(took)
        time.sleep(pause)
    connection.close()
    return times


def cost(root: Path, seconds: float, pause: float) -> float:
    """Return the ratio of a steady client's p99 with the sidecar to that without, alternating."""
    samples = [{"turns": np.array([turns], np.int64)} for turns in (SMALL, SMALL * 40)]
    task = artifact(root, slow_model(), samples)
    without: list[float] = []
    beside: list[float] = []
    with (
        Server(root, task, before=_SLOWS_DOWN, fresh=True) as server,
        Sidecar(root, task, server.port, fresh=True) as sidecar,
    ):
        sidecar.until_ready()
        steady(server.port, 5, pause)
        rounds = 6
        for _ in range(rounds):
            sidecar.process.send_signal(signal.SIGSTOP)
            without += steady(server.port, seconds / rounds / 2, pause)
            sidecar.process.send_signal(signal.SIGCONT)
            beside += steady(server.port, seconds / rounds / 2, pause)
    alone, with_it = (float(np.percentile(item, 99)) for item in (without, beside))
    middle = float(np.median(without))
    print(
        f"| {pause * 1000:g} ms | {middle * 1000:.1f} | {alone * 1000:.1f} | {with_it * 1000:.1f}"
        f" | {with_it / alone:.2f} | {max(without) * 1000:.0f} | {max(beside) * 1000:.0f} |",
        flush=True,
    )
    return with_it / alone


@dataclass
class Load:
    """Clients with random arrivals (Poisson), at `share` of the server's capacity in total."""

    port: int
    share: float
    compute: float
    stop: threading.Event = field(default_factory=threading.Event)
    statuses: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._ask, args=(index,)) for index in range(CLIENTS)
        ]
        if self.share:
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        if self.share:
            for thread in self._threads:
                thread.join()

    def _ask(self, seed: int) -> None:
        generator = random.Random(seed)  # noqa: S311 - of arrivals
        rate = self.share / self.compute / CLIENTS
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        due = time.monotonic()
        while not self.stop.is_set():
            due += generator.expovariate(rate)
            self.stop.wait(max(0.0, due - time.monotonic()))
            status, _ = ask(connection)
            self.statuses[status] = self.statuses.get(status, 0) + 1


def failing(sidecar: Sidecar) -> list[str]:
    """Return the failing latency checks, as text."""
    return [
        f"{check.check}: {check.message}"
        for check in sidecar.verdict().checks
        if check.check in LATENCY and check.state == "failed"
    ]


@contextmanager
def slow_down(server: Server) -> Iterator[None]:
    """Make the server do each run three times."""
    server.process.send_signal(signal.SIGUSR1)
    yield
    server.process.send_signal(signal.SIGUSR2)


@contextmanager
def busy_processor() -> Iterator[None]:
    """Run two other processes on the model's processor, which leaves it a third."""
    code = f"import os; os.sched_setaffinity(0, {{{PROCESSOR}}})\nwhile True: pass"
    # in the server's session: between autogroups, Linux 6.18 gives two thirds to the one whose
    # clients wake on the other processor
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        yield
    finally:
        for item in others:
            item.kill()
            item.wait()


def seconds_to_detection(sidecar: Sidecar, slow: AbstractContextManager[None]) -> float | None:
    """Return the seconds from the start of `slow` until a check fails, if one does; wait for recovery."""
    took = None
    with slow:
        began = time.monotonic()
        while took is None and time.monotonic() < began + 3 * ALARM_SECONDS:
            if failing(sidecar):
                took = time.monotonic() - began
            time.sleep(0.2)
    end = time.monotonic() + RECOVERY_SECONDS
    while failing(sidecar) and time.monotonic() < end:
        time.sleep(1)
    return took


def measure_load(root: Path, share: float, seconds: float) -> tuple[int, list[float | None]]:
    """Return the seconds with a failing check at a load, and the seconds to detect each slow-down."""
    samples = [{"turns": np.array([SMALL], np.int64)}]
    task = artifact(root, slow_model(), samples).model_copy(update={"max_queue": 16})
    with ExitStack() as stack:
        server = stack.enter_context(Server(root, task, before=_SLOWS_DOWN, fresh=True))
        sidecar = stack.enter_context(Sidecar(root, task, server.port, fresh=True))
        sidecar.until_ready()
        compute = float(np.median(steady(server.port, 3, 0.0)))
        load = stack.enter_context(Load(server.port, share, compute))
        alarms = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if failures := failing(sidecar):
                alarms += 1
                print(f"  {share:.0%}: {'; '.join(failures)}", file=sys.stderr, flush=True)
            time.sleep(1)
        slow_downs = (slow_down(server), busy_processor())
        took = [seconds_to_detection(sidecar, slow) for slow in slow_downs]
        detections = ["never" if item is None else f"{item:.0f} s" for item in took]
        print(
            f"| {share:.0%} | {seconds / 60:g} min | {alarms} s | {' | '.join(detections)}"
            f" | {load.statuses} |",
            flush=True,
        )
    return alarms, took


def steady_clients(seconds: float) -> bool:
    """Return whether the sidecar's cost for steady clients is within the limit."""
    print(
        "| pause | p50, ms | p99 without | p99 with the sidecar | ratio | max without | max with |\n"
        "|---|---|---|---|---|---|---|"
    )
    within = True
    for pause in (0.0, 0.1):
        with tempfile.TemporaryDirectory() as folder:
            within &= cost(Path(folder) / "c", seconds, pause) <= P99_LIMIT
    return within


def main() -> int:
    """Measure; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="at each load; 10 for a release")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of each steady client, or 0 for none"
    )
    parser.add_argument(
        "--loads",
        type=lambda text: [float(part) for part in text.split(",")],
        default=LOADS,
        help="shares of the server's capacity, separated by commas; several runs can share a machine by taskset",
    )
    options = parser.parse_args()
    within = True
    if options.seconds:
        within &= steady_clients(options.seconds)
    print(
        "\n| load | duration | a latency check failed for | slower model: detected after | busy processor: detected after | answers |\n"
        "|---|---|---|---|---|---|"
    )
    for share in options.loads:
        with tempfile.TemporaryDirectory() as folder:
            alarms, took = measure_load(Path(folder) / "j", share, options.minutes * 60)
            within &= not alarms
            within &= all(item is not None and item <= ALARM_SECONDS for item in took)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
