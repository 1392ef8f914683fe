"""What is meant for an object never reaches a later one of its name, on a real API server."""

from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.execute import Executor
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import INFERENCE_MODELS
from prometheus_client import CollectorRegistry

from tests.e2e.harness import Namespace, inference_model

pytestmark = pytest.mark.apiserver

NAME: Final = "replaced"
STATUS: Final[dict[str, Any]] = {"observedGeneration": 1}


# event: Operator | a model is deleted and applied again before the operator's watch delivers that | nothing of the
#   earlier one: its status is refused, since the object has another version now | those of a new model
async def test_a_status_is_not_written_onto_a_later_model_of_this_name(
    namespace: Namespace, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    namespace.apply(inference_model(NAME, "m.onnx"))
    client, cache = KubeClient(load_connection, RestMetrics(CollectorRegistry())), ObjectCache()
    executor = Executor(client, cache)
    earlier = await client.get(INFERENCE_MODELS, namespace.name, NAME)
    cache.observe(INFERENCE_MODELS, earlier)
    namespace.delete("im", NAME)
    namespace.apply(inference_model(NAME, "m.onnx"))

    assert not await executor.write_status(earlier, STATUS)
    later = await client.get(INFERENCE_MODELS, namespace.name, NAME)
    assert later["status"]["observedGeneration"] != 1

    cache.observe(INFERENCE_MODELS, later)
    assert not await executor.write_status(earlier, STATUS)
    assert await executor.write_status(later, STATUS)
    assert namespace.get("im", NAME)["status"]["observedGeneration"] == 1
    await client.close()
