"""Connections end at their maximum age without a client that sees a failure, and so does the sidecar's."""

import http.client
import json
import time

import numpy as np
import pytest

from tests.support.serving import Server, json_inputs, linear_model
from tests.support.shared import share_server

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"

LEAST_AGE = 0.45  # seconds of the fixture's connections: ages are spread


aging = share_server(
    linear_model,
    {"x": np.ones((2, 8), np.float32)},
    connection_age=0.5,
    aged_idle_seconds=2.0,
    sweep_seconds=0.05,
)


def test_a_keep_alive_client_reconnects_and_sees_no_failure(aging: Server) -> None:
    body = json.dumps(json_inputs(x=np.ones((1, 8), np.float32)))
    client = http.client.HTTPConnection("127.0.0.1", aging.port, timeout=30)
    began = time.monotonic()
    ages: list[float] = []
    while len(ages) < 4:
        if client.sock is None:  # a client that was asked to close connects again
            began = time.monotonic()
        client.request("POST", "/v2/models/m/infer", body)
        answer = client.getresponse()
        answer.read()
        assert answer.status == 200
        if answer.getheader("connection") == "close":
            ages.append(time.monotonic() - began)
        time.sleep(0.01)
    client.close()
    assert min(ages) >= LEAST_AGE, "and no earlier"
    assert min(ages) < 3


def test_an_idle_connection_is_closed_at_its_age_and_a_pausing_one_is_not(aging: Server) -> None:
    began = time.monotonic()
    with aging.wire() as idle, aging.wire() as pausing:
        idle.send(GET)
        assert idle.receive().status == 200
        for _ in range(100):
            pausing.send(GET)
            if pausing.receive().headers.get("connection") == "close":
                break
            time.sleep(0.15)  # much shorter than what closes an old one
        else:
            pytest.fail("no connection is ever old")
        assert time.monotonic() - began >= LEAST_AGE
        assert pausing.wait_closed()
        assert idle.wait_closed()
        assert time.monotonic() - began < 60  # an idle one has 75 s otherwise
