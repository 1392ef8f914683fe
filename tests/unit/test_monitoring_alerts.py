"""The alerts: what promtool says of them, and the way from a metric to the webhook, on real parts."""

import re
from typing import Any

import pytest
import yaml
from enginewright_contract.reasons import Reason

from tests.support.monitoring import REPOSITORY, RULES

ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
RUNBOOK = REPOSITORY / "docs/monitoring.md"


def name_of(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((REPOSITORY / "hack/monitoring/rules.test.yaml").read_text())["tests"]
    outcomes = {
        (case["alertname"], bool(case.get("exp_alerts")))
        for test in tests
        for case in test["alert_rule_test"]
    }
    assert outcomes == {(name_of(alert), fires) for alert in ALERTS for fires in (True, False)}


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_every_alert_has_its_section_in_the_runbook(alert: dict[str, Any]) -> None:
    page, anchor = alert["annotations"]["runbook"].split("#")
    assert REPOSITORY / page == RUNBOOK
    assert anchor == name_of(alert).lower()
    sections = re.split(r"^### ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    (section,) = [text for text in sections if text.splitlines()[0] == name_of(alert)]
    for part in ("**Meaning.**", "**Impact.**", "**Look at.**", "**Remedy.**"):
        assert part in section
    assert "```sh" in section


def test_the_runbook_has_no_section_without_an_alert() -> None:
    headings = re.findall(r"^### (Enginewright\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert headings == [name_of(alert) for alert in ALERTS]


def test_a_fallback_has_the_remedies_of_its_reasons() -> None:
    (alert,) = [item for item in ALERTS if name_of(item) == "EnginewrightCPUFallback"]
    shown = dict(
        re.findall(r'eq \$labels\.reason "(\w+)" -}}\s*(.+?)\s*{{-', alert["annotations"]["remedy"])
    )
    causes = {
        Reason.PROVIDER_MISSING, Reason.PROVIDER_REFUSED, Reason.DRIVER_MISSING, Reason.DRIVER_TOO_OLD,
        Reason.NODE_FALLBACK, Reason.BACKEND_FALLBACK, Reason.SESSION_REPLACED,
        Reason.UNSUPPORTED_OPERATOR,
    }  # fmt: skip
    assert shown == {reason.value: reason.remedy for reason in causes}
