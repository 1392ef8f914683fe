"""The alerts: what promtool says of them, and the way from a metric to the webhook, on real parts."""

import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from enginewright_contract.reasons import Reason

from hack.monitoring import config
from tests.e2e.harness import eventually, http_json
from tests.e2e.monitoring import first_seen
from tests.support.monitoring import REPOSITORY, RULES, Pods, process, promtool, running
from tests.support.ports import free_port
from tests.unit.test_monitoring_alerts import ALERTS


def test_promtool_accepts_the_rules() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"SUCCESS: {len(ALERTS)} rules found" in said


# fault: Latency | a pod is slow from its start, without engines | alert
#   EnginewrightSlowerThanPeers | 10 min
# fault: Reports | a model that never starts raises alerts that do not name the cause | alert
#   EnginewrightModelNotReady with the reason | 11 min; 1 min when stalled
# fault: Reports | every answer is a 400 and all checks are ok
# fault: Security | a pod exposes series of the operator that speak of another namespace, or silence its alerts | alerts
#   read them from the operator's job alone | prevented
def test_the_alerts_fire_and_resolve_as_promtool_tests_it() -> None:
    promtool("test", "rules", str(REPOSITORY / "hack/monitoring/rules.test.yaml"))


def test_from_metric_to_webhook_and_back(tmp_path: Path) -> None:
    name = "EnginewrightCPUFallback"
    chart = config.chart_objects()
    with (
        Pods.start() as pods,
        running(tmp_path, pods.scrape_configs(chart), 0.25) as stack,
    ):
        eventually(lambda: stack.query("enginewright_fallback_active == 0"), 20, interval=0.05)
        assert stack.list_notifications(name) == []
        began = time.time()
        pods.serving.fallen_back = True
        (fired,) = eventually(
            lambda: stack.list_notifications(name), 30, "the notification", interval=0.05
        )
        assert fired["status"] == "firing"
        expected = {
            "namespace": "shop", "model": "rank", "revision": "r1",
            "kind": "NodeFallback", "reason": "ProviderMissing",
        }  # fmt: skip
        assert expected.items() <= fired["labels"].items()
        assert "shop/rank" in fired["annotations"]["summary"]
        assert fired["annotations"]["remedy"] == Reason.PROVIDER_MISSING.remedy
        assert name in {alert["labels"]["alertname"] for alert in stack.alerts()}
        seen = first_seen(stack, "enginewright_fallback_active == 1")
        mended = time.time()
        pods.serving.fallen_back = False
        reported = eventually(
            lambda: [
                entry for entry in stack.list_notifications(name) if entry["status"] == "resolved"
            ],
            60,
            "the notification of the end",
            interval=0.05,
        )
        assert expected.items() <= reported[0]["labels"].items()
    print(
        f"fallback to metric: {seen - began:.1f} s, to webhook: {fired['receivedAt'] - began:.1f} s;"
        f" mended to webhook: {reported[0]['receivedAt'] - mended:.1f} s"
    )


def test_the_webhook_refuses_invalid_notifications(tmp_path: Path) -> None:
    port = free_port()
    command = [
        sys.executable, f"{REPOSITORY}/hack/monitoring/webhook.py",
        "--address=127.0.0.1", f"--port={port}",
    ]  # fmt: skip
    with process(command, tmp_path / "log"):
        url = f"http://127.0.0.1:{port}/"
        eventually(lambda: http_json(url) == [], 20, "an answer", interval=0.05)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for body, code in ((b"{", 400), (b"", 413)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                opener.open(urllib.request.Request(url, data=body), timeout=10)
            assert caught.value.code == code
        assert http_json(url, {"alerts": []}) == {}
        (kept,) = http_json(url)
    assert kept["notification"] == {"alerts": []}
    assert '"alerts": []' in (tmp_path / "log").read_text()
