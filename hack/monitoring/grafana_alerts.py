"""The alerts as Grafana-managed rules, made of the Prometheus rule file: for a Grafana that evaluates alerts itself.

Grafana replaces `$NAME` in a provisioning file by environment variables, so templates have `.Labels` and `.Values`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.alerting import RelativeTimeRange

_MONITORING: Final = Path(__file__).resolve().parents[2] / "charts/enginewright/files/monitoring"
FILE: Final = _MONITORING / "grafana-alerts.yaml"
RULES: Final = _MONITORING / "enginewright.rules.yaml"
DATASOURCE: Final = "prometheus"  # which the chart replaces
_QUERY: Final = "A"
_FIRES: Final = "B"
_LOOKBACK: Final = 600  # seconds, as Grafana's editor has it; an instant query uses the end alone
# of Grafana's API; in a file, the group has them
_OF_GROUP: Final = frozenset({"folderUID", "orgID", "ruleGroup"})


def make_file() -> str:
    """Return the provisioning file."""
    groups = [
        {
            "orgId": 1,
            "name": group["name"],
            "folder": "Enginewright",
            "interval": "1m",
            "rules": [_rule(rule) for rule in group["rules"]],
        }
        for group in yaml.safe_load(RULES.read_text())["groups"]
    ]
    return yaml.safe_dump({"apiVersion": 1, "groups": groups}, sort_keys=False, width=1 << 20)


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    name = rule["alert"]
    built = (
        alerting.Rule(name)
        .uid(name.lower())
        .queries([_query(rule["expr"]), _condition()])
        .condition(_FIRES)
        .for_val(rule.get("for", "0s"))
        .labels(rule["labels"])
        .annotations({key: translate(text) for key, text in rule["annotations"].items()})
        .no_data_state("OK")  # nothing is wrong
        .exec_err_state("Error")
        .build()
    )
    encoded: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    return {key: value for key, value in encoded.items() if key not in _OF_GROUP}


def _query(text: str) -> alerting.Query:
    model = prometheus.Dataquery().ref_id(_QUERY).expr(text).instant()
    return (
        alerting.Query(_QUERY)
        .datasource_uid(DATASOURCE)
        .relative_time_range(RelativeTimeRange(from_val=_LOOKBACK, to=0))
        .model(model)
    )


def _condition() -> alerting.Query:
    """Return the condition that every series fires, as in Prometheus: no value of ours is negative."""
    evaluator = expr.ExprTypeThresholdConditionsEvaluator().type("gt").params([-1])
    model = (
        expr.TypeThreshold()
        .ref_id(_FIRES)
        .expression(_QUERY)
        .conditions([expr.ExprTypeThresholdConditions().evaluator(evaluator)])
    )
    return alerting.Query(_FIRES).datasource_uid("__expr__").model(model)


def translate(template: str) -> str:
    """Return a Prometheus template as Grafana's, without `$`."""
    return template.replace("$labels.", ".Labels.").replace("$value", f".Values.{_QUERY}.Value")
