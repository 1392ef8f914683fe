"""Invalid input in the cluster: each ends with its reason, without retry storms, and a correction suffices."""

import json

import pytest

from tests.e2e.harness import CommandError, Namespace, eventually, inference_model

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
    wrong = inference_model("wrong-digest", "magika.onnx")
    wrong["spec"]["source"]["sha256"] = "0" * 64
    missing = inference_model("missing-file", "nothing-here.onnx")
    unreachable = inference_model("unreachable", "")
    unreachable["spec"]["source"]["uri"] = "http://nothing-here.invalid/model.onnx"
    secretless = inference_model("secretless", "")
    secretless["spec"]["source"] = {
        "uri": "http://nothing-here.invalid/model.onnx",
        "secretRef": {"name": "not-made"},
    }
    namespace.apply(wrong, missing, unreachable, secretless)
    return namespace


def _name(file: str) -> str:
    return file.removesuffix(".onnx")


@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_model_is_refused_with_its_reason(refused: Namespace, file: str) -> None:
    reason, cause = BROKEN[file]
    found = refused.wait_condition(_name(file), "Validated", "False", reason, 180)
    assert cause in found["message"]
    assert refused.condition(_name(file), "Stalled")["status"] == "True"
    assert not refused.items("deployments", f"enginewright.dev/model={_name(file)}")

    def events() -> list[str]:  # they follow the status
        found = json.loads(refused.kubectl("get", "events", "--output", "json"))["items"]
        return [
            each["message"]
            for each in found
            if (each["involvedObject"]["name"], each["reason"]) == (_name(file), reason)
        ]

    assert len(eventually(events, 30, "an Event")) == 1


def test_a_wrong_digest_names_both(refused: Namespace) -> None:
    found = refused.wait_condition("wrong-digest", "Validated", "False", "DigestMismatch", 180)
    assert "0" * 64 in found["message"]


@pytest.mark.parametrize("name", ["missing-file", "unreachable"])
def test_an_unreachable_source_is_retried_without_a_storm(refused: Namespace, name: str) -> None:
    refused.wait_condition(name, "Validated", "False", "SourceUnreachable", 180)
    assert refused.condition(name, "Reconciling")["status"] == "True"
    assert len(refused.items("jobs", f"enginewright.dev/model={name}")) <= 2


def test_a_missing_secret_is_reported(refused: Namespace) -> None:
    found = refused.wait_condition("secretless", "Validated", "False", "SourceUnreachable", 180)
    assert "Secret" in found["message"]


def test_correcting_the_spec_recovers(refused: Namespace) -> None:
    refused.wait_condition("truncated", "Validated", "False", "InvalidModel", 180)
    refused.apply(inference_model("truncated", "magika.onnx"))
    refused.wait_ready("truncated")
    refused.kubectl("delete", "im", "truncated", "--wait=true")


def test_a_digest_that_is_right_is_accepted(refused: Namespace) -> None:
    shown = refused.condition("wrong-digest", "Validated")["message"]
    digest = next(word for word in shown.replace(",", " ").split() if len(word) == 64)
    right = inference_model("wrong-digest", "magika.onnx")
    right["spec"]["source"]["sha256"] = digest
    refused.apply(right)
    refused.wait_ready("wrong-digest")
    refused.kubectl("delete", "im", "wrong-digest", "--wait=true")


@pytest.mark.parametrize(
    ("change", "wording"),
    [
        ({"source": {}}, "uri"),
        ({"source": {"uri": "ftp://x/y"}}, "s3"),
        ({"precision": "FP4"}, "FP16"),
        (
            {"shapes": [{"input": "x", "min": [2], "opt": [1], "max": [3]}]},
            "min <= opt <= max",
        ),
        ({"sauce": {}}, "unknown field"),
    ],
)
def test_the_api_server_refuses_with_a_sentence(
    refused: Namespace, change: dict[str, object], wording: str
) -> None:
    model = inference_model("never", "magika.onnx")
    model["spec"].update(change)
    with pytest.raises(CommandError) as caught:
        refused.apply(model)
    assert wording in caught.value.stderr
