"""The client over real HTTP on loopback: requests as they go out, answers as errors come back."""

import json

import pytest
from enginewright.kube.errors import (
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Terminating,
    Transient,
    error_from,
)
from enginewright.kube.resources import (
    INFERENCE_MODELS,
    JOBS,
    NODES,
    resource_of,
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (405, Invalid),
        (409, Conflict),
        (410, Expired),
        (413, Invalid),
        (415, Invalid),
        (422, Invalid),
        (429, Transient),
        (500, Transient),
        (503, Transient),
    ],
)
def test_codes_map_to_errors(code: int, expected: type[KubeError]) -> None:
    error = error_from(code, b'{"message": "said so", "reason": "R"}', {})
    assert type(error) is expected
    assert (error.message, error.code, error.reason) == ("said so", code, "R")


def test_a_namespace_that_is_being_deleted_is_known_by_its_cause() -> None:
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
    body = {"message": "forbidden", "reason": "Forbidden", "details": {"causes": [cause]}}
    assert type(error_from(403, json.dumps(body).encode(), {})) is Terminating
    for causes in (None, [], ["x"], [{"reason": "FieldValueInvalid"}]):
        body["details"] = {"causes": causes}
        assert type(error_from(403, json.dumps(body).encode(), {})) is Forbidden


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the API server responded with 400"),
        (b"upstream died\n", "upstream died"),
        (b"[]", "the API server responded with 400"),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_any_body_gives_a_sentence(body: bytes, message: str) -> None:
    assert error_from(400, body, {}).message == message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("-3", 0.0), ("99999", 300.0), ("Sat, 21 Nov 2026 05:00:00 GMT", None)],
)
def test_retry_after(header: str, seconds: float | None) -> None:
    error = error_from(503, b"", {"Retry-After": header})
    assert isinstance(error, Transient)
    assert error.retry_after == seconds


def test_paths() -> None:
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    assert JOBS.path() == "/apis/batch/v1/jobs"
    assert INFERENCE_MODELS.path("a b", "c/d", "status") == (
        "/apis/enginewright.dev/v1alpha1/namespaces/a%20b/inferencemodels/c%2Fd/status"
    )
    assert resource_of("v1", "Node") is NODES
    with pytest.raises(KeyError):
        resource_of("v1", "Gnome")
