"""Writes the tables of docs/ that the code decides, or checks that they are written.

A page holds `<!-- hack/docs: NAME ARGUMENT... -->` where a table begins and `<!-- /hack/docs -->`
where it ends. What lies between is replaced; everything else on the page is written by hand.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from enginewright.api.crds import definitions
from enginewright.contract.reasons import REMEDIES, SELDOM_PASSES, ExitCode, Reason, exit_code
from enginewright.controller.cache import Cache
from enginewright.controller.loop import LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector
from enginewright.controller.settings import SettingsDocument, StoreSettings
from enginewright.controller.verdicts import poll_counter
from enginewright.kube.metrics import RestMetrics
from enginewright_cli.plan.foreseen import Forecast, Step
from enginewright_cli.preflight.config import ModelEntry
from enginewright_cli.preflight.schema import descriptions
from enginewright_cli.preflight.schema import schema as preflight_schema
from enginewright_runtime.rules.table import RULES
from enginewright_runtime.serve.server.metrics import Metrics as ServerMetrics
from enginewright_runtime.serve.sidecar.metrics import FAMILIES
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

ROOT: Final = Path(__file__).resolve().parent.parent
ALERTS: Final = ROOT / "charts/enginewright/files/monitoring/enginewright.rules.yaml"
VALUES: Final = ROOT / "charts/enginewright/values.schema.json"
ACTION: Final = ROOT / ".github/actions/preflight/action.yml"
_BLOCK: Final = re.compile(
    r"(<!-- hack/docs: ([^>]*?) -->\n).*?(\n?<!-- /hack/docs -->)", re.DOTALL
)
_REFUSED: Final = re.compile(r"This version refuses it\.|This version takes only \w+\.")

Schema = dict[str, Any]
Rows = Iterable[Sequence[str]]


def table(heading: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(map(_cell, line)) + " |" for line in (heading, *rows)]
    lines.insert(1, "|---" * len(heading) + "|")
    return "\n".join(lines).replace("|  |", "| |")


def _cell(text: str) -> str:
    return re.sub(r"<(\w+)>", r"&lt;\1>", text.replace("|", r"\|").replace("\n", " "))


def code(text: str) -> str:
    """Return `text` as code; nothing of nothing."""
    return f"`{text}`" if text else ""


def reasons() -> str:
    """Return every failure reason."""

    def again(reason: Reason) -> str:
        if reason in SELDOM_PASSES:
            return "five times"
        return "no" if exit_code(reason) is ExitCode.PERMANENT else "yes"

    rows = ((reason, again(reason), REMEDIES[reason]) for reason in Reason)
    return table(("reason", "tried again", "remedy"), rows)


def remedies(*named: str) -> str:
    """Return the remedies of some reasons."""
    rows = ((code(name), REMEDIES[Reason(name)]) for name in named)
    return table(("reason", "first step"), rows)


def rules() -> str:
    """Return every rule of stage validate."""
    heading = ("rule", "severity", "reason", "finds", "remedy", "source")
    return table(
        heading,
        ((code(r.name), r.severity, r.reason, r.what, r.remedy, r.source) for r in RULES),
    )


def operator_metrics() -> str:
    """Return the operator's metrics, read from registries like its own."""
    registry = CollectorRegistry()
    LoopMetrics(registry)
    RestMetrics(registry)
    RestMetrics(registry, "enginewright_lease")
    EngineMetrics(registry)
    ModelCollector(Cache(), registry)
    poll_counter(registry)
    return _metrics(_exposed(registry._collector_to_names))  # noqa: SLF001 - labels have no other way out


def server_metrics() -> str:
    """Return the server's metrics."""
    return _metrics(_exposed([ServerMetrics("", "")]), common={"model", "revision"})


def sidecar_metrics() -> str:
    """Return the sidecar's metrics."""
    return _metrics((each.name, each.kind, each.labels, each.about) for each in FAMILIES)


def _exposed(collectors: Iterable[Any]) -> Iterator[tuple[str, str, Sequence[str], str]]:
    for collector in collectors:
        for family in collector.collect():
            owner = collector if hasattr(collector, "_labelnames") else family
            labels = [each for each in getattr(owner, "_labelnames", ()) if each != "le"]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, family.type, labels, family.documentation


def _metrics(
    families: Iterable[tuple[str, str, Sequence[str], str]], common: Iterable[str] = ()
) -> str:
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                code(name),
                kind,
                ", ".join(code(each) for each in labels if each not in common),
                about,
            )
            for name, kind, labels, about in families
        ),
    )


def fields(kind: str, part: str, *prefixes: str) -> str:
    """Return the fields of a custom resource below `prefixes`; all where there are none."""
    (definition,) = (
        each for each in definitions().values() if each["spec"]["names"]["kind"] == kind
    )
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    prefix = "status." if part == "status" else ""
    depth = 2 if part == "status" else 9
    rows = [
        (code(prefix + path), default, meaning)
        for path, default, meaning in _fields(schema, "", depth)
        if not prefixes or any(path == one or path.startswith(f"{one}.") for one in prefixes)
    ]
    if part == "status":
        return table(("field", "meaning"), ((name, meaning) for name, _, meaning in rows))
    return table(("field", "default", "meaning"), rows)


def _fields(schema: Schema, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if here == "conditions":
            field = {**field, "items": {}}  # noqa: PLW2901 - the same for every kind
        inside = field if "properties" in field else field.get("items", {})
        meaning = field.get("description", "")
        only = list(inside.get("properties", {})) == ["name"]
        if depth == 1 or only:
            inside = {}
        refused = _REFUSED.search(meaning)
        if refused:
            parts = ", ".join(code(f"{here}.{each}") for each in inside.get("properties", {}))
            meaning = f"✗ {meaning}" + (f" ({parts})" if parts else "")
            inside = {}
        default = _default(field, name in schema.get("required", ()))
        yield (f"{here}.name" if only else here), default, meaning
        yield from _fields(inside, here, depth - 1)


def _default(field: Schema, required: bool) -> str:
    if required:
        return "required"
    if field.get("default") in (None, {}):
        return ""
    default = field["default"]
    return code(default if isinstance(default, str) else json.dumps(default))


def settings() -> str:
    """Return the fields of the operator's configuration."""
    rows = [*_settings(SettingsDocument, ""), *_settings(StoreSettings, "store.")]
    return table(("field", "default", "meaning"), rows)


def _settings(document: type[BaseModel], path: str) -> Iterator[Sequence[str]]:
    meanings = descriptions(document)
    for name, field in document.model_fields.items():
        default = {} if isinstance(field.default, BaseModel) else field.default
        shown = "required" if field.is_required() else code(json.dumps(default).strip('"'))
        yield code(f"{path}{field.alias}"), shown, meanings[name]


def values() -> str:
    """Return the chart's values."""
    defaults = yaml.safe_load((VALUES.parent / "values.yaml").read_text())
    rows = _values(json.loads(VALUES.read_text()), defaults, "")
    return table(("value", "default", "meaning"), rows)


def _values(schema: Schema, defaults: object, path: str) -> Iterator[Sequence[str]]:
    for name, field in schema.get("properties", {}).items():
        if name == "global":
            continue
        here = f"{path}.{name}" if path else name
        default = defaults.get(name) if isinstance(defaults, dict) else None
        inside = field.get("properties", {})
        shown = "" if inside or default in (None, "") else code(json.dumps(default).strip('"'))
        yield code(here), shown, field.get("description", "")
        yield from _values(field, default, here)


def preflight(part: str) -> str:
    """Return the fields of one part of preflight's JSON."""
    found = preflight_schema()["$defs"][part]["properties"]
    rows = ((code(name), field.get("description", "")) for name, field in found.items())
    return table(("field", "meaning"), rows)


def configuration() -> str:
    """Return the keys of enginewright.toml."""
    rows = (
        (code(name), words.removesuffix(".") + ("; only in `[[models]]`" if name == "path" else ""))
        for name, words in descriptions(ModelEntry).items()
    )
    return table(("key", "meaning"), rows)


def action_inputs() -> str:
    """Return the inputs of the GitHub action."""
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    rows = (
        (code(name), code(each["default"]), each["description"].removesuffix("."))
        for name, each in inputs.items()
    )
    return table(("input", "default", "meaning"), rows)


def forecast(of: str) -> str:
    """Return the fields of `plan --json`."""
    models: dict[str, type[BaseModel]] = {"model": Forecast, "step": Step}
    model = models[of]
    rows = (
        (code(field.alias or name), str(field.description).removesuffix("."))
        for name, field in model.model_fields.items()
    )
    return table(("field", "meaning"), rows)


def alerts() -> str:
    """Return every alert, with its section and what it waits for."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rows = (
        (
            f"[{rule['alert']}](#{rule['alert'].lower()})",
            rule["labels"]["severity"],
            rule.get("for", "at once"),
            ", ".join(
                map(code, sorted(set(re.findall(r"\b(?:enginewright_\w+|up)\b", rule["expr"]))))
            ),
        )
        for group in groups
        for rule in group["rules"]
    )
    return table(("alert", "severity", "for", "reads"), rows)


TABLES: Final[dict[str, Callable[..., str]]] = {
    "action-inputs": action_inputs,
    "alerts": alerts,
    "configuration": configuration,
    "fields": fields,
    "forecast": forecast,
    "operator-metrics": operator_metrics,
    "preflight": preflight,
    "reasons": reasons,
    "remedies": remedies,
    "rules": rules,
    "server-metrics": server_metrics,
    "settings": settings,
    "sidecar-metrics": sidecar_metrics,
    "values": values,
}


def written(text: str) -> str:
    """Return a page with its tables as the code has them."""

    def block(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return f"{found[1]}\n{TABLES[name](*arguments)}\n\n{found[3].lstrip()}"

    return _BLOCK.sub(block, text)


def main() -> int:
    """Write the pages' tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    drifted = False
    for page in sorted(ROOT.glob("docs/*.md")):
        known = page.read_text()
        wanted = written(known)
        if wanted == known:
            continue
        drifted = True
        if not check:
            page.write_text(wanted)
            continue
        diff = difflib.unified_diff(known.splitlines(), wanted.splitlines(), lineterm="", n=0)
        print(f"{page.relative_to(ROOT)} has drifted: run hack/docs", *diff, sep="\n")
    return int(check and drifted)


if __name__ == "__main__":
    sys.exit(main())
