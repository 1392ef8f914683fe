"""Cause and remedy stay apart from a stage's failure to its readers, also beside earlier releases."""

import json

import pytest
import yaml
from enginewright_contract.causes import first
from enginewright_contract.reasons import Reason
from enginewright_contract.report import (
    TERMINATION_MESSAGE_LIMIT,
    Finding,
    Proposal,
    Published,
    StageReport,
    read_termination_message,
    remedy,
    render,
)
from enginewright_contract.signature import PublishedSignature
from enginewright_contract.task import (
    ENGINE_STAGES,
    MOST_STEPS,
    PREPARE_STAGES,
    SIDECAR,
    Processing,
    ShapeProfile,
)
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.reporting import report_failure
from hypothesis import given
from hypothesis import strategies as st

from tests.support.optional import present

SHAPES = tuple(
    ShapeProfile(input=name, min=(1, 0), opt=(1, 64), max=(8, 128))
    for name in ("ids", "a mask", 'it\'s "x"\\', "x\x1b[2J\x7f")
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3 * TERMINATION_MESSAGE_LIMIT)


LONG = 3 * TERMINATION_MESSAGE_LIMIT
PUBLISHED: dict[str, object] = {
    "key": "0" * 64,
    "model_digest": "1" * 64,
    "opset": 17,
    "ir_version": 8,
    "nodes": 1,
    "size_bytes": 1,
}
ENGINE: dict[str, object] = {
    "key": "0" * 64,
    "sha256": "1" * 64,
    "size_bytes": 1,
    "build_seconds": 1.0,
    "compute_capabilities": ["8.9"],
    "nodes_total": 1,
    "nodes_accelerated": 1,
}


RECORDED: dict[str, object] = {
    "versions": dict.fromkeys(("backend", "ort", "cuda", "driver"), "10.13.3.9"),
    "parity_max_abs_error": 1.2345678e-05,
    "parity_max_rel_error": 0.0012345678,
    "latencies": [
        {"shapes": shapes, "p50": 0.001234, "p99": 0.002345} for shapes in ("min", "opt", "max")
    ],
}

IMAGE: dict[str, object] = {"image": f"{180 * 'r'}@sha256:{64 * '3'}"}
DATA: dict[str, object] = {"data": {f"step-{number}": 64 * "4" for number in range(6)}}


def send(report: StageReport) -> StageReport:
    """Return what is read of the termination message, which fits."""
    text = report.termination_message()
    assert len(text.encode()) <= TERMINATION_MESSAGE_LIMIT
    return present(read_termination_message(text))


def signature(outputs: int) -> dict[str, object]:
    tensors = [f"output{index}:FP32[-1,3,224,224]" for index in range(outputs)]
    return {"digest": "2" * 64, "inputs": ["x:FP32[1..32,3]"], "outputs": tensors}


def test_one_sentence_is_made_of_cause_and_remedy() -> None:
    assert render("it broke", "mend it") == "it broke; mend it"
    assert render("it broke", "") == "it broke"
    assert render("", "mend it") == "mend it"


def test_the_remedy_is_the_reasons_unless_the_finder_has_another() -> None:
    finding = Finding(reason=Reason.TIMEOUT, cause="late")
    assert finding.advice == Reason.TIMEOUT.remedy
    assert finding.message == f"late; {Reason.TIMEOUT.remedy}"
    own = Finding(reason=Reason.TIMEOUT, cause="late", remedy="begin earlier")
    assert (own.advice, own.message) == ("begin earlier", "late; begin earlier")
    assert Finding(reason=Reason.TIMEOUT, cause="late", remedy="").message == "late"


@pytest.mark.parametrize("container", [*PREPARE_STAGES, *ENGINE_STAGES, SIDECAR, "server"])
def test_the_remedy_names_the_fields_of_the_container(container: str) -> None:
    finding = Finding(reason=Reason.OUT_OF_MEMORY, cause="too much")
    assert finding.of_container(container).advice == remedy(Reason.OUT_OF_MEMORY, container)
    own = finding.model_copy(update={"remedy": "buy a larger node"})
    assert own.of_container(container) == own


def test_proposal_is_data_and_can_be_pasted() -> None:
    finding = Finding(
        reason=Reason.SHAPE_PROFILE_MISSING,
        cause="no sizes",
        remedy="add to spec",
        proposal=Proposal(shapes=SHAPES),
    )
    start = "no sizes; add to spec: "
    assert finding.message.startswith(start)
    pasted = yaml.safe_load(finding.message.removeprefix(start))
    assert tuple(ShapeProfile.model_validate(item) for item in pasted["shapes"]) == SHAPES
    assert finding.message.isprintable(), "a terminal obeys nothing of a model's names"
    assert Finding.model_validate_json(finding.to_json()) == finding


def test_a_failure_keeps_its_finding_on_every_way() -> None:
    failure = StageFailure(
        Reason.PARITY_FAILED, "output 'y' drifts.", nodes=tuple(map(str, range(150)))
    )
    assert (failure.cause, len(failure.nodes)) == ("output 'y' drifts", 100)
    assert failure.finding.node_count == 150
    again = StageFailure.of(failure.finding)
    assert (again.finding, str(again)) == (failure.finding, failure.message)
    report = report_failure("golden", failure)
    assert StageReport.model_validate_json(report.to_json()) == report
    termination_message = present(read_termination_message(report.termination_message()))
    assert termination_message.outcome == report.outcome == failure.message


@given(cause=TEXT, advice=st.none() | TEXT, proposed=st.booleans())
def test_termination_message_of_any_size_is_read(
    cause: str, advice: str | None, proposed: bool
) -> None:
    finding = Finding(
        reason=Reason.SHAPE_PROFILE_MISSING,
        cause=cause,
        remedy=advice,
        proposal=Proposal(shapes=SHAPES * 4) if proposed else None,
    )
    termination_message = send(StageReport(stage="validate", ok=False, failure=finding))
    assert termination_message.failure is not None
    assert termination_message.reason is Reason.SHAPE_PROFILE_MISSING
    kept = termination_message.failure.cause.removesuffix(" …").rstrip()
    assert cause.startswith(kept)
    if termination_message.failure.remedy is None:
        assert termination_message.failure.proposal is None or advice is None
        assert termination_message.failure.of_container("validate").remedy
    else:
        assert termination_message.failure == finding, "a remedy is whole, or the reason's"


@given(message=TEXT)
def test_a_termination_message_of_success_is_cut_too(message: str) -> None:
    published = Published(
        key="0" * 64, model_digest="1" * 64, opset=17, ir_version=8, nodes=1, size_bytes=1
    )
    termination_message = send(
        StageReport(stage="publish", ok=True, message=message, published=published)
    )
    assert termination_message.published == published


# what earlier releases wrote: one message, at the end of which the remedy stands


def earlier(message: str, **more: object) -> str:
    reported = {"stage": "fetch", "ok": False, "reason": "Timeout", "message": message, **more}
    return json.dumps(reported, ensure_ascii=False, separators=(",", ":"))


def test_a_message_of_an_earlier_release_is_read_as_it_is() -> None:
    termination_message = present(
        read_termination_message(earlier("late; begin earlier", seconds=1.5))
    )
    assert termination_message.failure == Finding(
        reason=Reason.TIMEOUT, cause="late; begin earlier", remedy=""
    )
    assert (termination_message.seconds, termination_message.outcome) == (
        1.5,
        "late; begin earlier",
    )


def test_a_message_that_an_earlier_release_cut_has_the_reasons_remedy() -> None:
    termination_message = present(read_termination_message(earlier("late, since …")))
    assert termination_message.failure is not None
    assert termination_message.failure.of_container("build").message == (
        f"late, since …; {remedy(Reason.TIMEOUT, 'build')}"
    )


@pytest.mark.parametrize("end", [60, 70])
def test_a_termination_message_that_the_kubelet_cut_has_the_reasons_remedy(end: int) -> None:
    for text in (
        earlier("m" * 100),
        StageReport(
            stage="fetch", ok=False, failure=Finding(reason=Reason.TIMEOUT, cause="m" * 100)
        ).termination_message(),
    ):
        cut = text[: text.index("Timeout") + end]
        termination_message = present(read_termination_message(cut))
        assert termination_message.outcome == Reason.TIMEOUT.remedy


def test_a_report_of_an_earlier_release_is_read() -> None:
    finding = {"severity": "warning", "reason": "Timeout", "message": "late; begin earlier"}
    report = StageReport.model_validate_json(earlier("late; begin earlier", findings=[finding]))
    (read,) = report.findings
    assert (read.severity, read.cause, read.message) == (
        "warning",
        "late; begin earlier",
        "late; begin earlier",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "{}",
        '{"stage":"fetch"}',
        "[1]",
        '{"stage":"x","ok":0,"reason":[],"message":5}',
    ],
)
def test_invalid_termination_message_is_none(text: str) -> None:
    assert read_termination_message(text) is None


@pytest.mark.parametrize("reason", [Reason.OUT_OF_MEMORY, Reason.DRIVER_MISSING])
def test_the_usual_remedy_of_an_earlier_release_is_the_containers(reason: Reason) -> None:
    message = f"quantizing failed; {reason.remedy}"
    read = Finding.model_validate({"reason": reason, "message": message})
    assert (read.cause, read.remedy) == ("quantizing failed", None)


def test_a_failure_of_a_newer_release_keeps_its_cause() -> None:
    failure = {
        "severity": "info",
        "reason": "BrandNew",
        "cause": "node x is odd",
        "remedy": "mend x",
    }
    text = json.dumps({"stage": "validate", "ok": False, "failure": failure})
    read = present(read_termination_message(text))
    assert read.failure is not None
    assert (read.reason, read.failure.cause) == (Reason.INTERNAL_ERROR, "BrandNew: node x is odd")
    assert read.failure.advice == "mend x"
    readable = text.replace("BrandNew", "InvalidModel")
    assert (reread := read_termination_message(readable)) is not None
    assert (reread.reason, reread.outcome) == (Reason.INVALID_MODEL, "node x is odd; mend x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("build_seconds", "NaN"),
        ("latency_p99", "1e400"),
        ("size_bytes", "-1"),
        ("size_bytes", "1e23"),
    ],
)
def test_figures_that_are_none_are_not_reported(field: str, value: str) -> None:
    text = json.dumps({"stage": "publish", "ok": True, "engine": ENGINE | {field: 0}})
    assert (read := read_termination_message(text)) is not None
    assert read.engine is not None
    wrong = text.replace(f'"{field}": 0', f'"{field}": {value}')
    assert read_termination_message(wrong) is None


@pytest.mark.parametrize(
    "made",
    [
        {"published": PUBLISHED | {"changes": LONG * "é"}},
        {"published": PUBLISHED | {"changes": 256 * "\x00"}},
        {"published": PUBLISHED | {"changes": 256 * "é", "signature": signature(300)}},
        {"engine": ENGINE | {"elsewhere": [f"{LONG * 'n'} (Det)"]}},
        {"engine": ENGINE | {"elsewhere": 400 * ["n (Det)"]}},
        {"engine": ENGINE | {"latencies": 16 * [{"shapes": 60 * "é", "p50": 0.01, "p99": 0.02}]}},
        {"engine": ENGINE | RECORDED},
        {"published": PUBLISHED | IMAGE | {"changes": 256 * "é", "signature": signature(300)}},
        {"engine": ENGINE | RECORDED | IMAGE | {"elsewhere": 400 * ["n (Det)"]}},
    ],
)
def test_published_report_fits_into_a_termination_message(made: dict[str, object]) -> None:
    report = StageReport.model_validate(
        {"stage": "publish", "ok": True, "message": "published it", **made}
    )
    read = send(report)
    vital = read.published or read.engine
    assert vital is not None
    assert vital.key == "0" * 64


@pytest.mark.parametrize(("outputs", "listed"), [(1, True), (8, True), (20, False), (300, False)])
@pytest.mark.parametrize("changes", ["", 256 * "c", 256 * "é"])
def test_signature_is_listed_if_it_fits(outputs: int, listed: bool, changes: str) -> None:
    made = PUBLISHED | {"changes": changes, "signature": signature(outputs)}
    report = StageReport.model_validate({"stage": "publish", "ok": True, "published": made})
    text = report.termination_message()
    assert len(text.encode()) <= TERMINATION_MESSAGE_LIMIT
    assert report.published is not None
    whole = report.published.signature
    assert whole is not None
    read = present(read_termination_message(text))
    assert read.published is not None
    assert read.published.signature == (whole if listed else whole.drop_lists())
    kept = read.published.changes.removesuffix(" …")
    assert changes.startswith(kept)
    if outputs == 1 or not listed:
        assert len(kept) > 50 or kept == changes, "what the signature leaves is used"


@pytest.mark.parametrize("changes", ["", 256 * "é"])
@pytest.mark.parametrize("outputs", [1, 300])
def test_an_image_is_reported_if_it_fits(outputs: int, changes: str) -> None:
    made = PUBLISHED | IMAGE | {"changes": changes, "signature": signature(outputs)}
    for fields, kept in ((made, True), (made | DATA | {"image_failure": 256 * "x"}, False)):
        report = StageReport.model_validate({"stage": "publish", "ok": True, "published": fields})
        read = send(report)
        assert read.published is not None
        assert read.published.image == (IMAGE["image"] if kept else None)
        assert read.published.key == "0" * 64


def test_a_cut_report_of_a_prepared_model_keeps_its_first_fields() -> None:
    made = PUBLISHED | {"signature": signature(3)}
    report = StageReport.model_validate({"stage": "publish", "ok": True, "published": made})
    text = report.termination_message()
    for end in range(text.index('"published"'), len(text)):
        read = present(read_termination_message(text[:end]))
        assert (read.stage, read.ok, read.published) == ("publish", True, None)


@pytest.mark.parametrize(
    ("made", "field", "kept"),
    [
        ({"published": PUBLISHED | {"precision": LONG * "p"}}, "precision", 256 * "p"),
        ({"published": PUBLISHED | {"changes": LONG * "c"}}, "changes", 256 * "c"),
        ({"engine": ENGINE | {"elsewhere": 20 * [LONG * "n"]}}, "elsewhere", 16 * (256 * "n",)),
        (
            {"engine": ENGINE | {"compute_capabilities": 20 * ["8.9"]}},
            "compute_capabilities",
            16 * ("8.9",),
        ),
    ],
)
def test_texts_and_lists_are_cut(made: dict[str, object], field: str, kept: object) -> None:
    read = StageReport.model_validate({"stage": LONG * "s", "ok": True, **made})
    assert read.stage == 256 * "s"
    assert getattr(read.published or read.engine, field) == kept


@pytest.mark.parametrize(
    "made",
    [
        {"published": PUBLISHED | {"key": LONG * "0"}},
        {"published": PUBLISHED | {"model_digest": LONG * "0"}},
        {"published": PUBLISHED | {"data": {"samples": LONG * "0"}}},
        {"published": PUBLISHED | {"signature": {"digest": LONG * "0"}}},
        {"published": PUBLISHED | {"data": {LONG * "s": "0"}}},
        {"published": PUBLISHED | {"data": {str(index): "0" for index in range(9)}}},
        {"engine": ENGINE | {"key": LONG * "0"}},
        {"engine": ENGINE | {"sha256": LONG * "0"}},
    ],
)
def test_a_digest_that_is_none_is_not_reported(made: dict[str, object]) -> None:
    text = json.dumps({"stage": "publish", "ok": True, **made})
    assert read_termination_message(text) is None


def test_a_name_that_is_not_utf_8_can_be_reported() -> None:
    failure = StageFailure(Reason.EXTERNAL_DATA_MISSING, "only \udcff.onnx is there")
    report = StageReport(stage="fetch", ok=False, failure=failure.finding)
    assert "udcff.onnx" in report.termination_message()


def test_cut_text_keeps_as_much_as_fits() -> None:
    finding = Finding(reason=Reason.INVALID_MODEL, cause=3000 * '"')
    text = StageReport(stage="validate", ok=False, failure=finding).termination_message()
    assert 900 < len(text.encode()) <= 1024


@pytest.mark.parametrize("name", ["true", "null", "on", ".5", "1", "a.b", "x: y"])
def test_a_name_in_yaml_is_a_string(name: str) -> None:
    profile = ShapeProfile(input=name, min=(1,), opt=(1,), max=(1,))
    assert yaml.safe_load(Proposal(shapes=(profile,)).yaml)["shapes"][0]["input"] == name


def test_many_causes_are_named_once_a_reason() -> None:
    many = [Finding(reason=Reason.PROVIDER_REFUSED, cause=f"{n}" * 1024) for n in range(40)]
    finding = present(first([Finding(reason=Reason.DRIVER_MISSING, cause="no driver"), *many]))
    assert len(finding.cause) < 2048


def test_the_digests_of_all_that_may_be_fetched_fit() -> None:
    steps = Processing(before=("a",) * MOST_STEPS, after=("a",) * MOST_STEPS).steps()
    published = Published(
        key="a" * 64,
        model_digest="b" * 64,
        opset=26,
        ir_version=13,
        nodes=10**6,
        size_bytes=10**12,
        precision="INT8",
        changes="changed " * 30,
        golden_output_bytes=10**9,
        data=dict.fromkeys(("samples", "calibration", *steps), "c" * 64),
        signature=PublishedSignature(digest="d" * 64, inputs=("x:FP32[1]",) * 20),
    )
    report = StageReport(stage="publish", ok=True, message="published " * 30, published=published)
    read = send(report)
    assert read.published is not None
    assert read.published.data == published.data
    assert read.published.key == published.key
