"""The table of reasons: what is decided by each, that each is reported, and what its facets must agree on."""

from pathlib import Path

import pytest
from enginewright_contract import causes
from enginewright_contract.reasons import (
    ExitCode,
    Fault,
    Reason,
    Repeats,
    Row,
    exit_code,
    has_fault,
    reason_named,
)

ROOT = Path(__file__).parents[2]
# an interface of stages and podFailurePolicy; all others are permanent
RETRIED = {
    "SourceUnreachable", "StoreUnavailable", "StorageFull", "OutOfMemory", "ArtifactMissing", "BuildOutOfMemory",
    "DriverMissing", "CapacityBlocked", "SecretUnusable", "PodNotStarted", "DeviceLost", "RunsFail", "Evicted",
}  # fmt: skip


def test_the_exit_code_of_each_reason_stays() -> None:
    codes = {str(reason): exit_code(reason) for reason in Reason}
    assert {name for name, code in codes.items() if code is ExitCode.TRANSIENT} == RETRIED
    assert [name for name, code in codes.items() if code is ExitCode.INTERNAL] == ["InternalError"]
    assert exit_code(None) is ExitCode.OK


def test_a_reason_without_a_row_is_refused_when_it_is_defined() -> None:
    with pytest.raises(TypeError, match="reason Lost has no row"):
        vars(Reason)["__new_member__"](Reason, "Lost")
    with pytest.raises(TypeError, match="facets"):
        Row(name="Lost", remedy="look for it")  # type: ignore[call-arg]  # - what is tested


def test_each_reason_is_reported_by_the_product() -> None:
    sources = [path for top in ("operator", "runtime_image") for path in (ROOT / top).rglob("*.py")]
    text = "\n".join(source.read_text() for source in sources if source.name != "reasons.py")
    alerts = (ROOT / "hack/monitoring/rules.test.yaml").read_text()
    unused = [
        reason
        for reason in Reason
        if f"Reason.{reason.name}" not in text and f"remedy {reason}\n" not in alerts
    ]
    assert unused == []


def test_a_name_of_the_operator_or_of_another_release_is_no_reason() -> None:
    assert reason_named("Progressing") is None
    assert reason_named("DriverMissing") is Reason.DRIVER_MISSING
    assert has_fault("DriverMissing", Fault.STORE, Fault.NODE)
    assert not has_fault("DriverMissing", Fault.STORE)
    assert not has_fault("Progressing", *Fault)


def test_of_several_causes_the_image_comes_before_the_node_the_device_and_the_model() -> None:
    ranked = sorted((reason for reason in Reason if reason.facets.placement), key=causes.rank)
    assert ranked == [
        Reason.VERSION_MISMATCH,
        Reason.SESSION_REPLACED,
        Reason.PROVIDER_MISSING,
        Reason.DRIVER_MISSING,
        Reason.DRIVER_TOO_OLD,
        Reason.ENGINE_CORRUPT,
        Reason.ENGINE_VERSION_MISMATCH,
        Reason.ENGINE_INCOMPATIBLE,
        Reason.PROVIDER_REFUSED,
        Reason.UNSUPPORTED_OPERATOR,
        Reason.BACKEND_FALLBACK,
        Reason.FALLBACK_OVER_BUDGET,
        Reason.NODE_FALLBACK,
    ]
    assert causes.rank(None) == causes.rank(Reason.TIMEOUT) > causes.rank(ranked[-1])


def test_node_failures_do_not_repeat_everywhere() -> None:
    of_nodes = [reason for reason in Reason if reason.facets.fault is Fault.NODE]
    assert Reason.PROCESSOR_MISMATCH in of_nodes
    assert [of_node for of_node in of_nodes if of_node.facets.repeats is Repeats.EVERYWHERE] == []


def test_a_lack_of_memory_or_disk_says_nothing_about_the_model() -> None:
    assert {reason for reason in Reason if reason.lacks_resources} == {
        Reason.OUT_OF_MEMORY,
        Reason.BUILD_OUT_OF_MEMORY,
        Reason.STORAGE_FULL,
        Reason.EVICTED,
    }
