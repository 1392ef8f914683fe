"""The rule for prometheus-adapter of docs/autoscaling.md: what Prometheus answers to its queries."""

from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.monitoring import REPOSITORY, evaluate

PAGE: Final = (REPOSITORY / "docs/autoscaling.md").read_text()
LABELS: Final = (
    'namespace="shop",pod=~"rank-1|rank-2"'  # as the adapter selects an autoscaler's pods
)


def rule() -> dict[str, Any]:
    parts = (yaml.safe_load(part.partition("```")[0]) for part in PAGE.split("```yaml\n")[1:])
    (rules,) = [part for part in parts if "rules" in part]
    (custom,) = rules["rules"]["custom"]
    return dict(custom)


def query() -> str:
    """Return the query that the adapter sends for a metric of pods."""
    series, _, _ = rule()["seriesQuery"].partition("{")
    text = str(rule()["metricsQuery"])
    for name, value in (("Series", series), ("LabelMatchers", LABELS), ("GroupBy", "pod")):
        text = text.replace(f"<<.{name}>>", value)
    assert "<<" not in text, text
    return text


def test_each_pod_has_the_depth_of_its_queue(tmp_path: Path) -> None:
    series = 'enginewright_queue_depth{{namespace="{}",pod="{}",model="m",revision="r",job="enginewright-sidecar"}}'
    depths = {
        ("shop", "rank-1"): 3,
        ("shop", "rank-2"): 0,
        ("shop", "other-1"): 9,
        ("x", "rank-1"): 7,
    }
    evaluate(
        tmp_path,
        {series.format(*pod): f"{depth}x10" for pod, depth in depths.items()},
        {
            query(): {'{pod="rank-1"}': 3, '{pod="rank-2"}': 0},
            f"count({rule()['seriesQuery']})": {"{}": len(depths)},
        },
        "3m",
    )
