"""One run: every server with every model, several rounds, in which the servers alternate."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.serving import aging, bare, cases, load, processes
from bench.serving.cases import Case
from bench.serving.cores import SERVER, pin
from bench.serving.exchange import MODEL, WrongAnswerError, check, request
from bench.serving.load import LoadError
from bench.serving.results import Bare, Results
from bench.serving.servers import HTTP_PORT, OURS, NotStartedError, Server, port_of, running

CONNECTIONS: Final = (1, 8, 32)
_TURNS: Final = 2.5  # that every connection has within a window
_LONGEST_SECONDS: Final = 10.0
_LISTEN_SECONDS: Final = 3.0  # that a server's second port may open after it is ready


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    servers: dict[str, Sequence[Server]]  # by model
    aged: Sequence[str]  # models with which ours is compared with itself, aged
    rounds: int
    seconds: float  # each measurement
    limit_seconds: float  # a round that would probably end later does not begin


def program(module: str, *arguments: str) -> str:
    """Run one of our modules as a process; return what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(plan: Plan, results: Results, folder: Path) -> None:
    """Fill `results`, with the models in `folder`."""
    began = time.monotonic()
    for turn in range(plan.rounds):
        started = time.monotonic()
        for name, servers in plan.servers.items():
            case = cases.read(folder / name)
            _measure_bare(case, results)
            for server in servers:
                _say(f"round {turn + 1} of {plan.rounds}, {name}: {server.name}")
                _measure_server(server, case, plan.seconds, results)
                if server.name == OURS and name in plan.aged and not turn:
                    _say(f"{name}: {OURS}, aged, beside a fresh one")
                    _measure_aged(server, case, results)
        results.about["rounds"] = turn + 1
        now = time.monotonic()
        if now - began + (now - started) > plan.limit_seconds:
            break
    results.about["seconds"] = round(time.monotonic() - began)


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def _measure_bare(case: Case, results: Results) -> None:
    with pin(SERVER):
        times: dict[str, float] = json.loads(program(bare.__name__, str(case.folder)))
    before = results.bare.get(case.name)
    size = case.model.stat().st_size / 1e6
    if before is None:
        results.bare[case.name] = Bare(case.title, size, **times, batch=cases.BATCH)
    else:
        before.one_us = min(before.one_us, times["one_us"])
        before.batch_us = min(before.batch_us, times["batch_us"])


def _measure_server(server: Server, case: Case, seconds: float, results: Results) -> None:
    if server.input_name is not None:
        case = replace(case, input=server.input_name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with running(server, case, Path(folder)) as process:
                if server.environment is None:
                    results.add_batch(case.name, server.name, _read_batch_rows())
                for transport in _listening(server, results):
                    _measure_transport(server, transport, case, process, seconds, results)
        except NotStartedError as error:
            results.absent[f"{server.name}, {case.name}"] = str(error)


def _measure_aged(server: Server, case: Case, results: Results) -> None:
    try:
        results.aging[case.name] = aging.compare(server, case)
    except (NotStartedError, WrongAnswerError, LoadError, OSError) as error:
        results.absent[f"{server.name}, aged, {case.name}"] = str(error)


def _read_batch_rows() -> int:
    """Return the rows of the largest batch that our server has chosen at this start."""
    url = f"http://127.0.0.1:{HTTP_PORT}/v2/models/{MODEL}/execution"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return int(json.load(answer)["batch_rows"])


def _listening(server: Server, results: Results) -> Iterable[str]:
    """Return the transports whose port answers."""
    for transport in server.transports:
        if listens(port_of(transport)):
            yield transport
        else:
            results.absent[f"{server.name}, {transport}"] = (
                f"port {port_of(transport)} does not answer"
            )


def listens(port: int) -> bool:
    """Return whether a port answers within some seconds."""
    deadline = time.monotonic() + _LISTEN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


def _measure_transport(
    server: Server, transport: str, case: Case, process: int, seconds: float, results: Results
) -> None:
    row = results.row(case.name, server.name, transport)
    port = port_of(transport)
    sent = request(transport, case, server.path)
    try:
        check(sent, case, port)  # the first is slower
        began = time.monotonic()
        size = check(sent, case, port)
        slow = (time.monotonic() - began) * _TURNS
        for connections in CONNECTIONS:
            window = min(max(seconds, slow * connections), _LONGEST_SECONDS)
            figures = load.measure(
                sent, port, process, size, connections=connections, seconds=window
            )
            row.add(connections, figures)
        check(sent, case, port)  # an overloaded server may answer wrongly now
    except (WrongAnswerError, LoadError, OSError) as error:
        row.failures.append(str(error))
        _say(f"{case.name}, {server.name}, {transport} FAILED: {error}")
    row.memory_mb = max(row.memory_mb, processes.proportional_mb(process))
