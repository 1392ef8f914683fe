"""What our server has learnt while it was slow for reasons of its own must not slow it down later.

A server that was throttled for a minute is measured beside a fresh one, in turns: a machine that becomes slower or
quicker meanwhile changes both.
"""

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.serving import load
from bench.serving.cases import Case
from bench.serving.exchange import BINARY, check, request
from bench.serving.results import Aging
from bench.serving.servers import Server, port_of, running
from bench.serving.targets import MANY
from bench.serving.throttling import throttle

_TURNS: Final = 10
_THROTTLED_SECONDS: Final = 60.0
_WINDOW_SECONDS: Final = 1.0


def compare(server: Server, case: Case) -> Aging:
    """Start a server twice, throttle one of them, then measure both in turns.

    Raises:
        NotStartedError: One of them did not become ready.
        LoadError, WrongAnswerError: Answers were wrong.
    """
    sent = request(BINARY, case, server.path)
    ports = [port_of(BINARY, place) for place in range(2)]
    with ExitStack() as running_servers:
        processes = []
        for place in range(2):
            folder = Path(running_servers.enter_context(tempfile.TemporaryDirectory()))
            processes.append(running_servers.enter_context(running(server, case, folder, place)))
        means = throttle(processes[1], sent, ports[1], _THROTTLED_SECONDS)
        size = check(sent, case, ports[0])
        check(sent, case, ports[1])
        rates, medians = [], []
        for turn in range(_TURNS):
            lone: dict[int, load.Figures] = {}
            many: dict[int, load.Figures] = {}
            for place in (0, 1) if turn % 2 else (1, 0):
                for figures, connections in ((lone, 1), (many, MANY)):
                    figures[place] = load.measure(
                        sent,
                        ports[place],
                        processes[place],
                        size,
                        connections=connections,
                        seconds=_WINDOW_SECONDS,
                    )
            rates.append(many[1].per_second / many[0].per_second)
            medians.append(lone[1].p50_us / lone[0].p50_us)
    return Aging(statistics.median(rates), statistics.median(medians), _TURNS, means)
