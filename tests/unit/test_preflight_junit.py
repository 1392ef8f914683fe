"""JUnit's XML: what Jenkins' schema allows, and what a pipeline shows of it."""

import re
from xml.etree import ElementTree as ET

import pytest
from enginewright_cli.preflight.junit import document

from tests.support.optional import present
from tests.support.preflight_results import HOSTILE, hostile, partial

# of junit-10.xsd in Jenkins' xunit plugin: element -> attributes needed, others allowed, children
ALLOWED: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package"},
        {"testcase", "properties", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def read(text: str) -> ET.Element:
    root = ET.fromstring(text)  # noqa: S314 - ours
    assert root.tag == "testsuites"
    for element in root.iter():
        needed, others, children = ALLOWED[element.tag]
        assert needed <= set(element.attrib) <= needed | others
        assert {child.tag for child in element} <= children
        assert TIME.fullmatch(element.get("time", ""))
    return root


def test_a_suite_a_model_and_a_case_a_target() -> None:
    good = partial().model_copy(
        update={"source": "good.onnx", "targets": {"cpu": partial().targets["cpu"]}}
    )
    root = read(document([partial(), good]))
    assert root.attrib == {
        "name": "enginewright.preflight",
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "time": "235.600",
    }
    first, second = root
    assert (first.get("name"), first.get("tests"), first.get("failures")) == (
        "models/detector.onnx",
        "3",
        "1",
    )
    assert (second.get("name"), second.get("tests"), second.get("failures")) == (
        "good.onnx",
        "1",
        "0",
    )
    assert [case.get("name") for case in first] == ["sm89", "cpu", "openvino"]
    assert {case.get("classname") for case in first} == {"models/detector.onnx"}
    assert [case.get("time") for case in first] == ["92.250", "21.000", "4.500"]


def test_failures_have_messages_and_warnings_are_output() -> None:
    sm89, cpu, openvino = read(document([partial()]))[0]
    failure = present(openvino.find("failure"))
    assert failure.get("type") == "UnsupportedOperator"
    assert failure.get("message") == (
        "backend openvino has no operator for /nms (NonMaxSuppression)"
    )
    assert failure.text is not None
    assert "remedy: replace the operators when exporting" in failure.text
    assert "option: --shapes images=1x3x32x32:1x3x320x320:8x3x640x640" in failure.text
    assert sm89.find("failure") is None
    out = sm89.findtext("system-out", "")
    assert "warning CalibrationTooSmall (quantize): 16 samples are few" in out
    assert (
        "63 of 65 compute nodes on the backend, 32.5% of the compute time on other providers" in out
    )
    assert "changed: converted opset 11 to 17" in out
    assert "CalibrationTooSmall" not in cpu.findtext("system-out", "")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(text: str) -> None:
    written = document([hostile(text)])
    written.encode()
    failure = present(read(written).find(".//failure"))
    assert (failure.text or "").startswith("error UnsupportedOperator")
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(written)
