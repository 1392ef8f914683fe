"""Invalid models in the cluster: each gets its reason, without a storm of retries, until it is corrected."""

import re
from typing import Any

import pytest

from tests.e2e.harness import Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BROKEN = {
    "truncated.onnx": ("InvalidModel", "is truncated"),
    "empty.onnx": ("InvalidModel", "empty"),
    "text.onnx": ("InvalidModel", "not an ONNX model"),
    "newer-opset.onnx": ("OpsetUnsupported", "encoder/decay (CumProd)"),
    "custom-operator.onnx": ("CustomDomainUnsupported", "frobnicate_1 (Frobnicate)"),
}


@pytest.fixture(scope="module")
def refused(namespace: Namespace) -> Namespace:
    """All invalid models applied at once: none may delay another."""
    namespace.apply(*(inference_model(_name(file), file) for file in BROKEN))
    nowhere = {"uri": "http://nothing-here.invalid/model.onnx"}
    secretless = {**nowhere, "secretRef": {"name": "not-made"}}
    namespace.apply(
        with_digest("0" * 64),
        inference_model("missing-file", "nothing-here.onnx"),
        inference_model("unreachable", "", source=nowhere),
        inference_model("secretless", "", source=secretless),
    )
    return namespace


def with_digest(sha256: str) -> dict[str, Any]:
    source = {"uri": "pvc://models/magika.onnx", "sha256": sha256}
    return inference_model("wrong-digest", "", source=source)


def _name(file: str) -> str:
    return file.removesuffix(".onnx")


@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_model_is_refused_with_its_reason(refused: Namespace, file: str) -> None:
    reason, cause = BROKEN[file]
    validated = refused.wait_condition(_name(file), "Validated", "False", reason, 180)
    assert cause in validated["message"]
    assert refused.condition(_name(file), "Stalled")["status"] == "True"
    assert not refused.items("deployments", f"enginewright.dev/model={_name(file)}")

    def events() -> list[str]:  # they follow the status
        fields = f"involvedObject.name={_name(file)},reason={reason}"
        return [entry["message"] for entry in refused.items("events", fields=fields)]

    assert len(eventually(events, 30, "an Event")) == 1


@pytest.mark.parametrize("name", ["missing-file", "unreachable"])
def test_an_unreachable_source_is_retried_without_a_storm(refused: Namespace, name: str) -> None:
    refused.wait_condition(name, "Validated", "False", "SourceUnreachable", 180)
    assert refused.condition(name, "Reconciling")["status"] == "True"
    assert len(refused.items("jobs", f"enginewright.dev/model={name}")) <= 2


def test_a_missing_secret_is_reported(refused: Namespace) -> None:
    validated = refused.wait_condition("secretless", "Validated", "False", "SourceUnreachable", 180)
    assert "Secret" in validated["message"]


def test_correcting_the_spec_recovers(refused: Namespace) -> None:
    refused.wait_condition("truncated", "Validated", "False", "InvalidModel", 180)
    refused.apply(inference_model("truncated", "magika.onnx"))
    refused.wait_ready("truncated")
    refused.kubectl("delete", "im", "truncated", "--wait=true")


def test_a_wrong_digest_is_refused_with_the_right_one(refused: Namespace) -> None:
    validated = refused.wait_condition("wrong-digest", "Validated", "False", "DigestMismatch", 180)
    digests = re.findall(r"\b[0-9a-f]{64}\b", validated["message"])
    (digest,) = set(digests) - {"0" * 64}
    refused.apply(with_digest(digest))
    refused.wait_ready("wrong-digest")
    refused.kubectl("delete", "im", "wrong-digest", "--wait=true")
