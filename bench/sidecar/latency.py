"""What golden inferences cost a steady client, and how soon a model that has become slow is found.

Real server, real sidecar, at their defaults. Two parts:

1. p99 of one client that asks a model at batch 1, with the sidecar over without it, in turns within
   one run: other load on the machine meets both alike.
2. Requests at 0, 50, 90 and 150% of what the server can do, for some minutes each: no check of latency
   may fail. Then the model takes three times as long, first because it has grown, then because two
   other processes compute on its processor: each time a check must fail within a minute.
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

from enginewright.contract.verdict import Check

from tests.support.serving import Server, slow_model
from tests.support.sidecar import Sidecar, artifact

P99_LIMIT: Final = 1.1  # with the sidecar, over without
ALARM_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 120.0  # between two slow-downs
LOADS: Final = (0.0, 0.5, 0.9, 1.5)  # of what the server can do
CLIENTS: Final = 24  # of the loads: as many may wait at a time
SMALL: Final = 20  # turns of the small sample; the large one takes forty times as many
LATENCY: Final = (Check.PROBE_LATENCY, Check.LIVE_LATENCY)

PROCESSOR: Final = min(os.sched_getaffinity(0))  # of the model
# For `Server(before=...)`: one thread and one processor for the model, so that clients have the others;
# and from SIGUSR1 on each run is done three times, until SIGUSR2.
_GROWS: Final = f"""
import os, signal
os.sched_setaffinity(0, {{{PROCESSOR}}})
import enginewright_runtime.core.limits
from enginewright_runtime.session.runner import Runner
enginewright_runtime.core.limits.threads = lambda: 1
once, times = Runner.run, [1]
def grown(self, *arguments, **options):
    for _ in range(times[0] - 1):
        once(self, *arguments, **options)
    return once(self, *arguments, **options)
Runner.run = grown
signal.signal(signal.SIGUSR1, lambda *_: times.__setitem__(0, 3))
signal.signal(signal.SIGUSR2, lambda *_: times.__setitem__(0, 1))
"""


def request(turns: int) -> tuple[str, bytes, dict[str, str]]:
    """Return one inference request, which takes as long as `turns` says."""
    body = b'{"inputs":[{"name":"turns","datatype":"INT64","shape":[1],"data":[%d]}]}' % turns
    return "/v2/models/m/infer", body, {}


def ask(connection: http.client.HTTPConnection) -> tuple[int, float]:
    """Ask the small sample; return the status and the seconds."""
    path, body, headers = request(SMALL)
    began = time.monotonic()
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.monotonic() - began


def steady(port: int, seconds: float, pause: float) -> list[float]:
    """Ask one request after another with `pause` between; return the seconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, took = ask(connection)
        if status != 200:
            raise SystemExit(f"the steady client was answered with {status}")
        times.append(took)
        time.sleep(pause)
    connection.close()
    return times


def cost(root: Path, seconds: float, pause: float) -> float:
    """Return the p99 of a steady client with the sidecar over that without, measured in turns."""
    samples = [{"turns": np.array([turns], np.int64)} for turns in (SMALL, SMALL * 40)]
    task = artifact(root, slow_model(), samples)
    without: list[float] = []
    beside: list[float] = []
    with (
        Server(root, task, before=_GROWS, fresh=True) as server,
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
    alone, with_it = (float(np.percentile(each, 99)) for each in (without, beside))
    middle = float(np.median(without))
    print(
        f"| {pause * 1000:g} ms | {middle * 1000:.1f} | {alone * 1000:.1f} | {with_it * 1000:.1f}"
        f" | {with_it / alone:.2f} | {max(without) * 1000:.0f} | {max(beside) * 1000:.0f} |",
        flush=True,
    )
    return with_it / alone


@dataclass
class Load:
    """Clients that ask at random times, so often in all that the server has `share` of what it can do."""

    port: int
    share: float
    compute: float
    stop: threading.Event = field(default_factory=threading.Event)
    statuses: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._ask, args=(each,)) for each in range(CLIENTS)
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
    """Return the checks of latency that fail, as text."""
    return [
        f"{each.check}: {each.message}"
        for each in sidecar.verdict().checks
        if each.check in LATENCY and each.state == "failed"
    ]


@contextmanager
def grown(server: Server) -> Iterator[None]:
    """Have the server do each run three times."""
    server.process.send_signal(signal.SIGUSR1)
    yield
    server.process.send_signal(signal.SIGUSR2)


@contextmanager
def beside_others() -> Iterator[None]:
    """Have two other processes compute on the model's processor, which leaves it a third."""
    code = f"import os; os.sched_setaffinity(0, {{{PROCESSOR}}})\nwhile True: pass"
    # in the server's session: between sessions, Linux 6.18 gives two thirds to the one whose clients
    # wake on the other processor
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def found_after(sidecar: Sidecar, slow: AbstractContextManager[None]) -> float | None:
    """Return the seconds until a check fails while it is `slow`, None: never; wait until all is well again."""
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


def judge(root: Path, share: float, seconds: float) -> tuple[int, list[float | None]]:
    """Return how often a check failed in so many seconds at a load, and how soon it fails once slow."""
    samples = [{"turns": np.array([SMALL], np.int64)}]
    task = artifact(root, slow_model(), samples).model_copy(update={"max_queue": 16})
    with ExitStack() as stack:
        server = stack.enter_context(Server(root, task, before=_GROWS, fresh=True))
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
        took = [found_after(sidecar, slow) for slow in (grown(server), beside_others())]
        found = ["never" if each is None else f"{each:.0f} s" for each in took]
        print(
            f"| {share:.0%} | {seconds / 60:g} min | {alarms} s | {' | '.join(found)}"
            f" | {load.statuses} |",
            flush=True,
        )
    return alarms, took


def steady_clients(seconds: float) -> bool:
    """Tell whether the sidecar costs steady clients no more than it may."""
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
    """Measure; 1 when something is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="at each load; 10 to accept")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of each steady client; 0: none"
    )
    parser.add_argument(
        "--loads",
        type=lambda text: [float(each) for each in text.split(",")],
        default=LOADS,
        help="of what the server can do, with commas between; several runs may share a machine by taskset",
    )
    options = parser.parse_args()
    within = True
    if options.seconds:
        within &= steady_clients(options.seconds)
    print(
        "\n| load | for | a check of latency failed for | grown: found after | beside others: found after | answers |\n"
        "|---|---|---|---|---|---|"
    )
    for share in options.loads:
        with tempfile.TemporaryDirectory() as folder:
            alarms, took = judge(Path(folder) / "j", share, options.minutes * 60)
            within &= not alarms
            within &= all(each is not None and each <= ALARM_SECONDS for each in took)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
