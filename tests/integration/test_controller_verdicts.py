"""Polling of sidecars and builds: how often, what is kept, who is woken, who may become unready."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from enginewright.controller import poll_targets
from enginewright.controller.routing import ModelKey
from enginewright.controller.verdicts import VerdictPoller
from enginewright.kube.pod_http import DirectPodHttp
from enginewright_contract.verdict import Check
from prometheus_client import CollectorRegistry

from tests.support.ports import free_port
from tests.support.serving import linear_model
from tests.support.sidecar import Sidecar, artifact
from tests.unit.test_controller_verdicts import Sidecars


async def test_the_real_sidecar_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = artifact(tmp_path, linear_model(), [{"x": np.ones((1, 8), np.float32)}])
    # No server beside it: that, too, is a verdict.
    with Sidecar(tmp_path, task, free_port()) as sidecar:
        monkeypatch.setattr(poll_targets, "SIDECAR_PORT", sidecar.port)
        world = Sidecars()
        world.add_pod(model=task.model, revision=task.revision, podIP="127.0.0.1")
        woken: asyncio.Queue[ModelKey] = asyncio.Queue()
        poller = VerdictPoller(
            world.cache,
            DirectPodHttp(),
            CollectorRegistry(),
            changed=woken.put_nowait,
            engine_changed=lambda *_: None,
            write=world.write,
            wall=time.time,
        )
        poller.start()
        try:
            assert await asyncio.wait_for(woken.get(), 20) == ModelKey("ns", task.model)
            kept = poller.verdicts_of(world.pods())["p"]
        finally:
            await poller.stop()
        assert (kept.revision, kept.ready, kept.admitted) == (task.revision, False, False)
        assert {check.check for check in kept.checks} == set(Check)
