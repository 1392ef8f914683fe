"""Generates tables in docs/ and remedies of alerts from the code, or checks that they are up to date.

In a page, a table is enclosed by `<!-- hack/docs: NAME ARGUMENT... -->` and `<!-- /hack/docs -->`.
Everything else in the page is written by hand. In an alert, `# hack/docs: remedy REASON...` precedes
a remedy of `Reason`, which depends on the label `reason` if there are several reasons or `else`,
which introduces the reason or the text for all other reasons.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from enginewright_contract.reasons import Reason

from hack.tables import (
    fields,
    metrics,
    project,
    proofs,
    reasons,
    runtime,
    scale,
    serving,
    truth,
    verdicts,
)

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = sorted(ROOT.glob("docs/**/*.md"))
RULES_TEST: Final = ROOT / "hack/monitoring/rules.test.yaml"
_BLOCK: Final = re.compile(
    r"(<!-- hack/docs: ([^>]*?) -->\n).*?(\n?<!-- /hack/docs -->)", re.DOTALL
)
REMEDY: Final = re.compile(
    r"^( +# hack/docs: remedy ([^\n]+)\n)( +)remedy: .*?(?=^ +runbook: )", re.DOTALL | re.MULTILINE
)


TABLES: Final[dict[str, Callable[..., str]]] = {
    "action-inputs": fields.action_inputs,
    "alerts": metrics.alerts,
    "checks": runtime.checks,
    "condition-states": proofs.condition_states,
    "condition-types": reasons.condition_types,
    "configuration": fields.configuration,
    "dependencies": project.dependencies,
    "devices": runtime.devices,
    "events": proofs.events,
    "faults": proofs.faults,
    "fields": fields.fields,
    "hostile-clients": serving.hostile_clients,
    "lies": truth.lies,
    "messages": fields.messages,
    "node-cache-metrics": metrics.node_cache_metrics,
    "operator-metrics": metrics.operator_metrics,
    "pages": project.pages,
    "precisions": runtime.precisions,
    "preflight": fields.preflight,
    "reasons": reasons.reasons,
    "rules": reasons.rules,
    "scale-figures": scale.figures,
    "scale-targets": scale.targets,
    "server-limits": runtime.server_limits,
    "server-metrics": metrics.server_metrics,
    "serving-conditions": serving.conditions,
    "serving-figures": serving.figures,
    "serving-targets": serving.targets,
    "settings": fields.settings,
    "shape-operators": runtime.shape_operators,
    "sidecar-metrics": metrics.sidecar_metrics,
    "status-reasons": reasons.status_reasons,
    "thorough-tests": project.thorough_tests,
    "tolerances": runtime.tolerances,
    "values": fields.values,
    "verdict-disagreements": verdicts.disagreements,
    "verdicts": verdicts.verdicts,
}


def regenerate(text: str) -> str:
    """Return a page or alerts with all generated parts up to date."""

    def block(match: re.Match[str]) -> str:
        start, table, end = match.groups()
        name, *arguments = table.split()
        return f"{start}\n{TABLES[name](*arguments)}\n\n{end.lstrip()}"

    def remedy(match: re.Match[str]) -> str:
        start, names, indent = match.groups()
        return f"{start}{indent}remedy: {_remedy(names, indent)}\n"

    return REMEDY.sub(remedy, _BLOCK.sub(block, text))


def _remedy(named: str, indent: str) -> str:
    """Return the YAML of an alert's remedy, which may depend on the alert's label `reason`."""
    names, _, other = named.partition(" else ")
    cases = [(name, Reason(name).remedy) for name in names.split()]
    if not other:
        ((_, only),) = cases
        return json.dumps(only, ensure_ascii=False)
    lines = [">-"]
    for name, text in cases:
        opening = "{{- else if" if len(lines) > 1 else "{{ if"
        lines += [f'{opening} eq $labels.reason "{name}" -}}}}', text]
    otherwise = Reason(other).remedy if other in set(Reason) else other
    lines += ["{{- else -}}", otherwise, "{{- end }}"]
    return f"\n{indent}  ".join(lines)


def main() -> int:
    """Write the generated parts, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    drifted = False
    for page in (*PAGES, metrics.ALERTS, RULES_TEST):
        present = page.read_text()
        expected = regenerate(present)
        if expected == present:
            continue
        drifted = True
        if not check:
            page.write_text(expected)
            continue
        diff = difflib.unified_diff(present.splitlines(), expected.splitlines(), lineterm="", n=0)
        print(f"{page.relative_to(ROOT)} has drifted: run hack/docs", *diff, sep="\n")
    return int(check and drifted)


if __name__ == "__main__":
    sys.exit(main())
