"""`enginewright engine inspect NAME` against a real API server."""

import json
from typing import Any

import pytest

from tests.apiserver.test_engine_definition import NAME, engine, write_status
from tests.e2e.harness import Namespace
from tests.support.command_line import run_command
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver


def inspect(namespace: Namespace, *arguments: str) -> tuple[int, str, str]:
    command = ["engine", "inspect", *arguments, "-n", namespace.name]
    return run_command(command, {"KUBECONFIG": str(namespace.kubeconfig)})


def accelerator_class(name: str, capability: str) -> dict[str, Any]:
    spec = {"nodeSelector": {"inspected": name}, "computeCapability": capability}
    return make_object("AcceleratorClass", name, spec={**spec, "backends": ["tensorrt"]})


def test_resources(namespace: Namespace) -> None:
    namespace.apply(engine())
    code, shown, _ = inspect(namespace, NAME)
    assert (code, "the engine is not built" in shown) == (1, True)
    write_status(namespace)
    namespace.apply(
        accelerator_class("inspected-l4", "8.9"), accelerator_class("inspected-t4", "7.5")
    )
    code, shown, said = inspect(namespace, NAME, "--class", "inspected-l4")
    assert (code, said) == (0, "")
    assert "loads on class inspected-l4" in shown
    assert "412 of 415 in the engine, 0.3% of the time outside" in shown
    code, printed, _ = inspect(namespace, NAME, "--class", "inspected-t4", "--json")
    assert code == 1
    assert json.loads(printed)["fit"]["obstacles"] == [
        "it runs on compute capability 8.9, not on 7.5: build one for it"
    ]
    code, _, said = inspect(namespace, "gone")
    assert code == 2
    assert f"InferenceEngine gone not found in namespace {namespace.name}" in said
