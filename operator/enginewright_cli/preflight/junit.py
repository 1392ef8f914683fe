"""The result as JUnit XML for continuous integration, as Jenkins and GitLab accept it.

A model is a test suite and a target a test case, so that a pipeline shows which target fails.
The schema: jenkinsci/xunit-plugin, junit-10.xsd. GitLab reads classname, name, time, failure,
error and system-out.
"""

from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from enginewright_cli.formatting import share, visible
from enginewright_cli.preflight.result import Found, Result, TargetResult, Verdict

_PACKAGE: Final = "enginewright.preflight"
_TITLE: Final = 300  # characters of the message attribute, which lists show
_KINDS: Final[dict[Verdict, str]] = {"fail": "failure", "unknown": "error"}  # of elements


def document(results: Sequence[Result]) -> str:
    """Return the XML of one model or several."""
    suites = [_suite(result) for result in results]
    root = ET.Element(
        "testsuites",
        name=_PACKAGE,
        tests=str(sum(len(result.targets) for result in results)),
        failures=str(sum(_count(result, "fail") for result in results)),
        errors=str(sum(_count(result, "unknown") for result in results)),
        time=_seconds(sum(result.seconds for result in results)),
    )
    root.extend(suites)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(result: Result) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        name=visible(result.source),
        tests=str(len(result.targets)),
        failures=str(_count(result, "fail")),
        errors=str(_count(result, "unknown")),
        skipped="0",
        time=_seconds(result.seconds),
    )
    for name, target in result.targets.items():
        suite.append(_case(result, name, target))
    return suite


def _case(result: Result, name: str, target_result: TargetResult) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=visible(result.source),
        name=name,
        time=_seconds(target_result.seconds),
    )
    findings = [one for one in result.findings if name in one.targets]
    if kind := _KINDS.get(target_result.verdict):
        errors = [one for one in findings if one.severity == "error"]
        failure = ET.SubElement(
            case,
            kind,
            type=target_result.reason or "Failed",
            message=visible(errors[0].message if errors else target_result.message, _TITLE),
        )
        failure.text = visible("\n\n".join(map(_text, errors)) or target_result.message)
    output = [
        *_summary(target_result),
        *(_text(one) for one in findings if one.severity == "warning"),
    ]
    ET.SubElement(case, "system-out").text = visible("\n\n".join(output))
    return case


def _summary(result: TargetResult) -> list[str]:
    lines = [f"backend {result.backend}: {result.verdict}"]
    if result.nodes_total is not None:
        outside = result.compute_share_elsewhere
        time = f", {share(outside)} of the compute time on other providers" if outside else ""
        lines.append(
            f"{result.nodes_accelerated} of {result.nodes_total} compute nodes on the backend{time}"
        )
    lines += [f"changed: {change.message}" for change in result.changes]
    return ["\n".join(lines)]


def _text(finding: Found) -> str:
    nodes = f"\nnodes: {', '.join(finding.nodes)}" if finding.nodes else ""
    remedy = f"\nremedy: {finding.remedy}" if finding.remedy else ""
    options = "".join(f"\noption: {option}" for option in finding.options)
    return f"{finding.severity} {finding.reason} ({finding.stage}): {finding.message}{nodes}{remedy}{options}"


def _count(result: Result, verdict: Verdict) -> int:
    return sum(target.verdict == verdict for target in result.targets.values())


def _seconds(value: float) -> str:
    return f"{value:.3f}"
