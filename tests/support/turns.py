"""Requests to the slow model, which take as long as a test wants."""

import time

import numpy as np

from tests.support.serving import Server, json_inputs


def slow_request(
    server: Server,
    turns: int,
    *,
    probe: bool = False,
    defer: float | None = None,
    **parameters: int,
) -> bytes:
    """Return a request of so many turns; the sidecar's if it is a probe or has `defer` seconds."""
    headers = server.probe_header() if probe or defer is not None else {}
    if defer is not None:
        headers["Enginewright-Defer"] = f"{defer * 1000:.0f}"
    document = json_inputs(turns=np.array([turns])) | {"parameters": parameters}
    return server.infer_request(document, headers=headers)


def queue_depth(server: Server) -> float:
    return server.metric("enginewright_queue_depth")


def wait_for_loop(server: Server) -> None:
    """Wait until the event loop has read all bytes that were sent before this call."""
    for _ in range(2):
        assert server.get("/v2/health/live").status in {200, 503}


def measure_turns(server: Server, turns: int) -> float:
    """Return the seconds that a request of so many turns takes."""
    began = time.monotonic()
    assert server.send(slow_request(server, turns)).status == 200
    return time.monotonic() - began


def find_long_turns(server: Server) -> int:
    """Return turns that take a second or more; a single measurement may include a wait."""
    turns = 500
    while min(measure_turns(server, turns) for _ in range(2)) < 1:
        turns *= 2
    return turns
