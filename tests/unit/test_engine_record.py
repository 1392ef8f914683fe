"""What an InferenceEngine records of its build: versions, parity and latencies, from the manifest to the status."""

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from enginewright.plan.engines.status import engine_facts, engine_versions
from enginewright_contract.manifest import BackendLatency, Latency, OutputParity, UnjudgedParts
from enginewright_contract.report import StageReport, read_termination_message
from enginewright_runtime.engine.handoff import describe_published
from enginewright_runtime.session.driver import release

from tests.support.manifests import engine_info, manifest
from tests.support.optional import present
from tests.support.plan_world import World

PARITY = (
    OutputParity(name="y", compared_with="source", max_abs_error=1e-5, max_rel_error=inf),
    OutputParity(name="z", compared_with="source", max_abs_error=1.25e-4, max_rel_error=0.0021),
    OutputParity(name="y", compared_with="expected", max_abs_error=0.5, max_rel_error=0.7),
)
LATENCIES = tuple(
    Latency(p50=p50, p90=p50, p99=2 * p50, samples=9, shapes=shapes)
    for shapes, p50 in (("min", 0.0005), ("opt", 0.0012345678), ("max", 0.004))
)


def report_engine(image: str | None = None, **engine: Any) -> dict[str, Any]:
    """Return status.engine and status.versions after the Job's report went through its termination message."""
    info = engine_info(**{"parity_max_abs_error": 1.25e-4, "parity": PARITY, **engine})
    made = manifest(engine=info, versions={"onnxruntime": "1.31.1", "driver": "570.86.15"})
    built = describe_published(made, is_cached=False).model_copy(update={"image": image})
    report = StageReport(stage="publish-engine", ok=True, engine=built).termination_message()
    read = present(read_termination_message(report))
    assert read.engine is not None
    versions = present(engine_versions(read.engine))
    return {"engine": engine_facts(read.engine).manifest(), "versions": versions.manifest()}


def test_versions_of_the_build_are_recorded() -> None:
    assert report_engine()["versions"] == {
        "backend": "10.1",
        "ort": "1.31.1",
        "driver": "570.86.15",
    }


def test_parity_is_that_against_the_reference_and_not_the_expected_outputs() -> None:
    assert report_engine()["engine"]["parity"] == {
        "comparedWith": "source",
        "maxAbsError": "0.000125",
        "maxRelError": "0.0021",
    }


def test_parts_that_the_samples_do_not_judge_are_recorded() -> None:
    parts = UnjudgedParts(axis=1, indices=(4,), count=1, of=84)
    one = PARITY[1].model_copy(update={"unjudged": (parts,)})
    parity = report_engine(parity=(*PARITY[:1], one))["engine"]["parity"]
    assert parity["unjudged"].startswith("1 of 84 indices of axis 1 (4) of output 'z' do not vary")


@pytest.mark.parametrize("relative", [None, inf, nan])
def test_a_relative_difference_that_there_is_not_is_left_out(relative: float | None) -> None:
    one = OutputParity(name="y", compared_with="prepared", max_abs_error=0, max_rel_error=relative)
    parity = report_engine(parity=(one,), parity_max_abs_error=0.0)["engine"]["parity"]
    assert parity == {"comparedWith": "prepared", "maxAbsError": "0"}


def test_an_engine_that_was_built_without_a_device_has_neither_parity_nor_latencies() -> None:
    engine = report_engine(parity=(), parity_max_abs_error=None)["engine"]
    assert not {"parity", "latencies"} & engine.keys()


def test_every_size_that_was_measured_is_recorded() -> None:
    assert report_engine(latencies=LATENCIES)["engine"]["latencies"] == [
        {"shapes": "min", "p50Microseconds": 500, "p99Microseconds": 1000},
        {"shapes": "opt", "p50Microseconds": 1235, "p99Microseconds": 2469},
        {"shapes": "max", "p50Microseconds": 4000, "p99Microseconds": 8000},
    ]


def test_more_sizes_than_the_status_holds_are_cut() -> None:
    many = [LATENCIES[0].model_copy(update={"shapes": str(number)}) for number in range(40)]
    made = manifest(engine=engine_info(latencies=tuple(many)))
    assert len(engine_facts(describe_published(made, is_cached=True)).latencies) == 16


WHY = "ParityFailed: output 'logits' of golden sample 'max' is outside the tolerance" * 2
BACKENDS = (
    BackendLatency(backend="tensorrt", latency=LATENCIES[1]),
    BackendLatency(backend="cuda", latency=LATENCIES[1]),
    BackendLatency(backend="cpu", excluded=WHY),
)


def test_backends_that_were_compared_are_recorded() -> None:
    median = {"shapes": "opt", "p50Microseconds": 1235, "p99Microseconds": 2469}
    engine = report_engine(backends=BACKENDS)["engine"]
    assert engine["backends"] == [
        {"backend": "tensorrt", **median},
        {"backend": "cuda", **median},
        {"backend": "cpu", "excluded": WHY},
    ]
    assert "backends" not in report_engine()["engine"], "as of artefacts of earlier versions"


def test_of_a_long_report_reasons_are_cut_before_medians_are_lost() -> None:
    """What other fields can take at most, as of a large model on several architectures."""
    long = {
        "compute_share_elsewhere": 0.123456789012345,
        "size_bytes": 1 << 40,
        "workspace_bytes": 1 << 40,
        "build_seconds": 3599.123456789,
        "compute_capabilities": ("8.9", "9.0", "12.0"),
        "latency": LATENCIES[1],
    }
    image = f"registry.example.com:5000/enginewright/artifacts/a-long-team-name@sha256:{'a' * 64}"
    engine = report_engine(image, backends=BACKENDS, latencies=LATENCIES, **long)["engine"]
    assert [item["backend"] for item in engine["backends"]] == ["tensorrt", "cuda", "cpu"]
    assert [item.get("p50Microseconds") for item in engine["backends"]] == [1235, 1235, None]
    assert engine["backends"][2]["excluded"].endswith(" …")


def test_record_stays_in_the_status() -> None:
    world = World.of_engine(ahead_of_time=True).settle()
    world.succeeds(versions={"backend": "1.7.1.116", "ort": "1.31.1", "cuda": "13"})
    assert world.status["versions"] == {"backend": "1.7.1.116", "ort": "1.31.1", "cuda": "13"}
    world.operator_restarts()
    assert world.status["versions"]["backend"] == "1.7.1.116"


def test_a_report_of_an_earlier_version_has_no_versions() -> None:
    world = World.of_engine(ahead_of_time=True).settle().succeeds()
    assert "versions" not in world.status
    assert world.conditions()["Ready"] == ("True", "Built")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\nGCC version: 12.2.0\n",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build",
            "570.86",
        ),
        ("NVRM version: NVIDIA UNIX Kernel Module 580.95.05", "580.95.05"),
        ("GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", None),
        ("", None),
    ],
)
def test_driver_version_is_read(tmp_path: Path, text: str, expected: str | None) -> None:
    file = tmp_path / "version"
    assert release(file) is None, "there is no driver"
    file.write_text(text)
    assert release(file) == expected
