"""Probes, metrics and log lines as their readers see them."""

import logging
from typing import Any

import aiohttp
from enginewright.controller.cache import ObjectCache
from enginewright.controller.health import HealthServer
from enginewright.controller.logs import LogfmtFormatter, Sparse, log_context
from enginewright.controller.metrics import NAMED_MODELS, ModelCollector
from enginewright.kube.resources import INFERENCE_MODELS
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.ports import free_port


async def test_probes_and_metrics_over_http() -> None:
    port = free_port()
    problems: list[str | None] = [None]
    registry = CollectorRegistry()
    ModelCollector(ObjectCache(), registry, leads=lambda: True)
    server = HealthServer(
        port, alive=lambda: problems[0], ready=lambda: "not yet", registry=registry
    )
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert await get("/healthz") == (200, "ok\n")
            assert await get("/readyz") == (503, "not yet\n")
            problems[0] = "a worker is stuck"
            assert await get("/healthz") == (503, "a worker is stuck\n")
            status, text = await get("/metrics")
            assert status == 200
            assert "# TYPE enginewright_models gauge" in text
    finally:
        await server.stop()


def test_models_are_counted_by_condition_when_asked() -> None:
    cache, registry = ObjectCache(), CollectorRegistry()
    ModelCollector(cache, registry, leads=lambda: True)
    for number, ready in enumerate(("True", "True", "False")):
        conditions = [{"type": "Ready", "status": ready}]
        metadata = {"name": f"m{number}", "namespace": "ns", "resourceVersion": "1"}
        cache.observe(
            INFERENCE_MODELS, {"metadata": metadata, "status": {"conditions": conditions}}
        )
    text = generate_latest(registry).decode()
    assert 'enginewright_models{condition="Ready",status="True"} 2.0' in text
    assert 'enginewright_models{condition="Ready",status="False"} 1.0' in text
    assert 'enginewright_models{condition="Ready",status="Unknown"} 0.0' in text


def not_ready(
    number: int, reason: str, *, stalled: bool = False, serves: bool = False
) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": "False", "reason": reason},
        {"type": "Stalled", "status": str(stalled)},
        {"type": "Available", "status": str(serves)},
    ]
    metadata = {"name": f"m{number:03}", "namespace": "shop", "resourceVersion": "1"}
    return {"metadata": metadata, "status": {"conditions": conditions}}


def test_models_that_are_not_ready_are_named_stalled_ones_first_and_no_more_than_so_many() -> None:
    cache, registry = ObjectCache(), CollectorRegistry()
    ModelCollector(cache, registry, leads=lambda: True)
    assert "enginewright_model_not_ready_omitted 0.0" in generate_latest(registry).decode()
    ready = not_ready(0, "Serving")
    ready["status"]["conditions"][0]["status"] = "True"
    leaving = not_ready(1, "DriverMissing")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    unheard = {"metadata": {"name": "unheard", "namespace": "shop", "resourceVersion": "1"}}
    models = [ready, leaving, unheard, not_ready(2, "Suspended", stalled=True)]
    models += [not_ready(number, "RollingOut") for number in range(3, NAMED_MODELS + 3)]
    models.append(not_ready(900, "DriverMissing", stalled=True, serves=True))
    for model in models:
        cache.observe(INFERENCE_MODELS, model)
    lines = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if line.startswith("enginewright_model_not_ready{")
    ]
    assert len(lines) == NAMED_MODELS
    first, *others = lines
    labels = (
        'model="m900",model_namespace="shop",reason="DriverMissing",serves="true",stalled="true"'
    )
    assert labels in first
    assert all('serves="false"' in line for line in others)
    assert 'model="unheard"' not in "".join(others), "the last of those that are on their way"
    assert not [line for line in lines if "m000" in line or "m001" in line or "Suspended" in line]
    # left out: one that rolls out, the one not heard of and the suspended one
    assert "enginewright_model_not_ready_omitted 3.0" in generate_latest(registry).decode()


def test_a_log_line_names_its_object_and_stays_one_line() -> None:
    record = logging.LogRecord("a.b", logging.INFO, "", 0, 'said "%s"\nand more', ("so",), None)
    record.created = 0.25
    with log_context(controller="inferencemodel", namespace="ns", name="m"):
        line = LogfmtFormatter().format(record)
    assert line == (
        "ts=1970-01-01T00:00:00.250+00:00 level=info logger=a.b controller=inferencemodel"
        ' namespace=ns name=m msg="said \\"so\\"\\nand more"'
    )


def test_a_traceback_is_a_field() -> None:
    error = ZeroDivisionError("by zero")
    info = (ZeroDivisionError, error, None)
    record = logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), info)
    line = LogfmtFormatter().format(record)
    assert "\n" not in line
    assert "ZeroDivisionError" in line


def test_kopfs_many_lines_are_thinned_out_and_ours_are_not() -> None:
    sparse = Sparse()
    shown: list[str] = []
    for second in range(25):
        for name in ("kopf.watching", "enginewright.x"):
            record = logging.LogRecord(name, logging.ERROR, "", 0, "lost %s", ("it",), None)
            record.created = 1000.0 + second
            if sparse.filter(record):
                shown.append(f"{name} {record.getMessage()}")
    assert shown.count("enginewright.x lost it") == 25
    assert [line for line in shown if line.startswith("kopf")] == [
        "kopf.watching lost it",
        "kopf.watching lost it (and 9 lines more before)",
        "kopf.watching lost it (and 9 lines more before)",
    ]
