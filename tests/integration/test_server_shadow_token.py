"""Who may leave the figures: requests with the token of copies, and no other, against the real server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.serving_options import AccessLogTask
from enginewright_contract.shadow import shadow_token

from tests.support.serving import (
    COPY,
    SHADOW_TOKEN,
    Server,
    json_inputs,
    linear_model,
    write_artifact,
)
from tests.support.shared import share_server
from tests.support.waiting import until

SAMPLES = [{"x": np.ones((1, 8), np.float32)}]
REQUEST = json_inputs(x=np.ones((1, 8), np.float32))
INVALID: dict[str, Any] = {"inputs": []}
CLIENTS = 'enginewright_requests_total{code="200"'
COPIES = 'enginewright_shadow_requests_total{code="200"'


server = share_server(linear_model, *SAMPLES, options={"access_log": AccessLogTask(share=1.0)})


def figures(server: Server) -> tuple[float, float, int, int, int]:
    """Return the requests of clients and the copies that were answered, and what else shows requests of clients."""
    statistics = server.get("/v2/models/m/stats").json()["model_stats"][0]["inference_stats"]
    return (
        server.metric(CLIENTS),
        server.metric(COPIES),
        server.log().count('msg="request"'),
        statistics["success"]["count"],
        statistics["fail"]["count"],
    )


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "",
        SHADOW_TOKEN[:-1],
        SHADOW_TOKEN + "0",
        SHADOW_TOKEN.upper(),
        f"Bearer {SHADOW_TOKEN}",
        shadow_token("another model"),
    ],
)
def test_a_request_with_the_header_but_not_the_token_is_a_clients(
    server: Server, value: str
) -> None:
    clients, copies, lines, good, bad = figures(server)
    headers = {"Enginewright-Shadow": value}
    assert server.post(REQUEST, headers=headers).status == 200
    assert server.post(INVALID, headers=headers).status == 400
    until(lambda: figures(server) == (clients + 1, copies, lines + 2, good + 1, bad + 1), "counted")


def test_a_copy_with_the_token_is_in_no_figure_of_clients(server: Server) -> None:
    clients, copies, *others = figures(server)
    assert server.post(REQUEST, headers=COPY).status == 200
    assert server.post(INVALID, headers=COPY).status == 400
    until(lambda: figures(server)[:2] == (clients, copies + 1), "the copy is counted")
    assert server.post(REQUEST).status == 200
    lines, good, bad = others
    expected = (clients + 1, copies + 1, lines + 1, good + 1, bad)
    until(lambda: figures(server) == expected, "only the client's request is reported")


def test_a_server_whose_task_has_no_token_takes_every_request_for_a_clients(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), SAMPLES)
    without = task.model_copy(update={"shadow_token": None})
    with Server(tmp_path, without) as server:
        for headers in (COPY, {"Enginewright-Shadow": ""}):
            assert server.post(REQUEST, headers=headers).status == 200
        until(lambda: server.metric(CLIENTS) == 2, "both are counted")
        assert server.metric(COPIES) == 0
