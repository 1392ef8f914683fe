"""InferenceEngines in kubectl: columns, explain, rejected specifications."""

from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.api.conditions import Condition
from enginewright.api.inference_engine import (
    EngineFacts,
    EngineLatency,
    EngineParity,
    EngineSummary,
    EngineUsers,
    EngineVersions,
    InferenceEngine,
    InferenceEngineStatus,
)
from enginewright.api.job_failure import JobFailure

from tests.e2e.harness import CommandError, Namespace
from tests.support.plan_objects import engine_spec, make_object

pytestmark = pytest.mark.apiserver

NAME = "tensorrt-l4-0123456789ab"
NOW = datetime(2026, 11, 21, 4, 44, 30, tzinfo=UTC)
STATUS = InferenceEngineStatus(
    observed_generation=1,
    conditions=(
        Condition(
            type="Ready",
            status="True",
            reason="Built",
            message="built",
            observed_generation=1,
            last_transition_time=NOW,
        ),
    ),
    job=f"{NAME}-1",
    stage="publish-engine",
    percent=40,
    attempt=2,
    build_hash="ab" * 32,
    failure=JobFailure(
        stage="build", reason="BuildFailed", message="no Det", time=NOW, attempts=2, lasting=True
    ),
    failed_builds=("cd" * 32,),
    engine=EngineFacts(
        sha256="ef" * 32,
        size_bytes=81_000_000_000,
        build_milliseconds=512,
        compute_capabilities=("8.9",),
        nodes_total=415,
        nodes_accelerated=412,
        compute_billionths_elsewhere=3_000_000,
        elsewhere=("volume (Det)",),
        workspace_bytes=4 << 30,
        p99_microseconds=1234,
        latencies=(EngineLatency(shapes="opt", p50_microseconds=1000, p99_microseconds=1234),),
        parity=EngineParity(
            compared_with="prepared", max_abs_error="1e-05", max_rel_error="0.01", unjudged="1 of 2"
        ),
        cached=True,
    ),
    versions=EngineVersions(backend="10.13.3", ort="1.31.1", cuda="13", driver="570.86.15"),
    users=EngineUsers(count=7, models=("a", "b", "c", "d", "e")),
    last_used=NOW,
    summary=EngineSummary(capability="8.9", size="81GB", build="0.5s", nodes="412/415"),
)


def engine(**spec: Any) -> dict[str, Any]:
    return make_object("InferenceEngine", NAME, spec={**engine_spec(), **spec})


def refusal(namespace: Namespace, obj: dict[str, Any]) -> str:
    with pytest.raises(CommandError) as refused:
        namespace.apply(obj)
    return refused.value.stderr


def write_status(namespace: Namespace) -> None:
    status = STATUS.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    namespace.patch("ieng", NAME, {"status": status}, "status")


def test_columns(namespace: Namespace) -> None:
    namespace.apply(engine())
    write_status(namespace)
    header, row = namespace.kubectl("get", "ieng").splitlines()
    columns = "NAME READY REASON CLASS BACKEND CAPABILITY SIZE BUILD NODES AGE"
    assert " ".join(header.split()) == columns
    assert row.split()[:-1] == f"{NAME} True Built l4 tensorrt 8.9 81GB 0.5s 412/415".split()
    header, row = namespace.kubectl("get", "ieng", "--output", "wide").splitlines()
    assert header.split()[-5:] == ["KEY", "SHA256", "USERS", "LAST", "USED"]
    assert row.split()[-4:-1] == [engine()["spec"]["key"], "ef" * 32, "7"]


def test_the_operator_reads_its_own_status(namespace: Namespace) -> None:
    namespace.apply(engine())
    write_status(namespace)
    read = InferenceEngine.model_validate(namespace.get("ieng", NAME))
    assert read.status == STATUS
    assert read.spec == InferenceEngine.model_validate(engine()).spec


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("ieng", "A prepared model compiled for one class of accelerator."),
        ("ieng.spec", "Which engine, and how it is built."),
        ("ieng.spec.build", "How the Job runs; it does not affect the engine's content."),
        ("ieng.spec.build.timeoutSeconds", "waiting for a free device does not count."),
        ("ieng.status.failedBuilds", "and is not retried."),
        (
            "ieng.status.engine.computeBillionthsElsewhere",
            "outside the engine; absent: not profiled.",
        ),
        ("ieng.status.engine.computePermilleElsewhere", "Written by earlier versions"),
    ],
)
def test_explain_teaches_every_field(namespace: Namespace, field: str, sentence: str) -> None:
    assert sentence in " ".join(namespace.kubectl("explain", field).split())


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("key", {"key": "b" * 64}),
        ("preparedKey", {"preparedKey": "b" * 64}),
        ("class", {"class": "a100"}),
        ("backend", {"backend": "tensorrt-rtx"}),
        ("recipe", {"recipe": {"backendVersion": "10.10", "ortVersion": "1.31.1"}}),
    ],
)
def test_a_key_and_its_recipe_are_immutable(
    namespace: Namespace, field: str, change: dict[str, Any]
) -> None:
    namespace.apply(engine())
    reported = refusal(namespace, engine(**change))
    assert f"spec.{field}: Invalid value" in reported
    assert "its key identifies an engine: create another InferenceEngine instead" in reported


def test_build_settings_are_mutable(namespace: Namespace) -> None:
    namespace.apply(engine())
    namespace.apply(engine(build={"image": "registry.example/gpu:2", "timeoutSeconds": 60}))
    assert namespace.get("ieng", NAME)["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"key": "../../prepared/x"}, "spec.key", "64 lowercase hexadecimal digits"),
        ({"preparedKey": "A" * 64}, "spec.preparedKey", "64 lowercase hexadecimal digits"),
        ({"backend": "cpu"}, "spec.backend", "only tensorrt and tensorrt-rtx run engines"),
        ({"backend": "nonsense"}, "spec.backend", "Unsupported value"),
        ({"class": "L4"}, "spec.class", "write at most 63 lowercase letters"),
        (
            {"build": {"image": "i", "timeoutSeconds": 0}},
            "spec.build.timeoutSeconds",
            "greater than or equal to 1",
        ),
        ({"build": {"image": "i"}}, "spec.build.timeoutSeconds", "Required value"),
    ],
)
def test_an_invalid_spec_is_refused(
    namespace: Namespace, change: dict[str, Any], field: str, sentence: str
) -> None:
    reported = refusal(namespace, engine(**change))
    assert f"{field}: " in reported
    assert sentence in reported


def test_a_typo_is_refused_by_kubectl(namespace: Namespace) -> None:
    build = {**engine()["spec"]["build"], "timeout": "1h"}
    assert 'unknown field "spec.build.timeout"' in refusal(namespace, engine(build=build))


def test_a_name_that_is_no_label_is_refused(namespace: Namespace) -> None:
    long = {**engine(), "metadata": {"name": "e" * 64}}
    assert "an engine's name is a label of its Jobs" in refusal(namespace, long)
