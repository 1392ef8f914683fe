"""Writes what the code decides into docs/ and the alerts, or checks that it is written.

A page holds `<!-- hack/docs: NAME ARGUMENT... -->` where a table begins and `<!-- /hack/docs -->`
where it ends. What lies between is replaced; everything else on the page is written by hand.
An alert holds `# hack/docs: remedy REASON...` above a remedy that is one of `REMEDIES`, or that
depends on the label `reason`; what follows `else` there is for all other reasons.
"""

import argparse
import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from enginewright.api.conditions import ConditionType, StatusReason
from enginewright.api.crds import definitions
from enginewright.api.inference_model import Serving
from enginewright.contract.engines import LIBRARIES, PROVIDERS
from enginewright.contract.execution import Execution
from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.precisions import LEAST, RUNS
from enginewright.contract.reasons import REMEDIES, SELDOM_PASSES, ExitCode, Reason, exit_code
from enginewright.contract.task import Precision
from enginewright.contract.verdict import Check, FallbackVerdict, Verdict
from enginewright.controller.cache import ObjectCache
from enginewright.controller.loop import LoopMetrics
from enginewright.controller.metrics import EngineMetrics, ModelCollector
from enginewright.controller.settings import SettingsDocument, StoreSettings
from enginewright.controller.verdicts import poll_counter
from enginewright.kube.metrics import RestMetrics
from enginewright_cli.inspect.result import EngineFit, EngineInspection, InspectedFile
from enginewright_cli.plan.result import ClassPlan, Difference, Forecast, PlanStep, Refusal
from enginewright_cli.preflight.config import ModelEntry
from enginewright_cli.preflight.schema import descriptions
from enginewright_cli.preflight.schema import schema as preflight_schema
from enginewright_runtime.graph.scoped.shape_nodes import ARITHMETIC
from enginewright_runtime.proof.parity.tolerances import DEFAULTS as TOLERANCES
from enginewright_runtime.proof.parity.tolerances import ROUNDING, Tolerance
from enginewright_runtime.rules.table import RULES
from enginewright_runtime.serve.server.encode import JSON_ELEMENTS
from enginewright_runtime.serve.server.metrics import Metrics as ServerMetrics
from enginewright_runtime.serve.server.settings import MIB, ServerSettings
from enginewright_runtime.serve.sidecar.metrics import FAMILIES
from enginewright_runtime.serve.sidecar.settings import INTERVALS
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from hack import proofs, requirements

ROOT: Final = Path(__file__).resolve().parent.parent
ALERTS: Final = ROOT / "charts/enginewright/files/monitoring/enginewright.rules.yaml"
VALUES: Final = ROOT / "charts/enginewright/values.schema.json"
SITE: Final = ROOT / "zensical.toml"
ACTION: Final = ROOT / ".github/actions/preflight/action.yml"
_BLOCK: Final = re.compile(
    r"(<!-- hack/docs: ([^>]*?) -->\n).*?(\n?<!-- /hack/docs -->)", re.DOTALL
)
RULES_TEST: Final = ROOT / "hack/monitoring/rules.test.yaml"
REMEDY: Final = re.compile(
    r"^( +# hack/docs: remedy ([^\n]+)\n)( +)remedy: .*?(?=^ +runbook: )", re.DOTALL | re.MULTILINE
)
_REFUSED: Final = re.compile(r"This version refuses it\.|This version takes only \w+\.")

Schema = dict[str, Any]
Rows = Iterable[Sequence[str]]


def table(heading: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(map(_cell, line)) + " |" for line in (heading, *rows)]
    lines.insert(1, "|---" * len(heading) + "|")
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines))


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


def status_reasons() -> str:
    """Return the operator's own reasons, with the comment beside each."""
    return table(("reason", "meaning"), sorted(_commented(StatusReason)))


def condition_types() -> str:
    """Return the conditions of an InferenceModel, with the comment beside each."""
    return table(
        ("type", "when True"), ((code(name), about) for name, about in _commented(ConditionType))
    )


def _commented(names: type[StrEnum]) -> list[tuple[str, str]]:
    found = re.findall(r'= \(?\s*"(\w+)"  # (.+)', inspect.getsource(names))
    if [name for name, _ in found] != list(names):
        raise ValueError(f"a {names.__name__} has no comment: say what it means beside it")
    return found


def _docstrings(names: type[StrEnum]) -> list[str]:
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(names))).body
    parts = made.body[1:] if isinstance(made, ast.ClassDef) else []
    values = (part.value for part in parts if isinstance(part, ast.Expr))
    return [inspect.cleandoc(str(each.value)) for each in values if isinstance(each, ast.Constant)]


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
    ModelCollector(ObjectCache(), registry)
    poll_counter(registry)
    return _metrics(_exposed(registry._collector_to_names))  # noqa: SLF001 - labels have no other way out


def server_metrics() -> str:
    """Return the server's metrics."""
    return _metrics(_exposed([ServerMetrics("", "")]), common={"model", "revision"})


def server_limits() -> str:
    """Return what the server allows."""
    limits = ServerSettings()

    def mebibytes(size: int) -> str:
        return f"{size // MIB} MiB"

    queue = Serving.model_fields["max_queue"].default
    rate = f"{limits.transfer_rate // 1024} KiB"
    rows = (
        ("requests waiting for the model", f"`spec.serving.maxQueue`, {queue}; one more is a 503"),
        (
            "body",
            f"{mebibytes(limits.body_bytes)}, or the largest request that the shape profiles admit, if that is more",
        ),
        ("JSON in a request", mebibytes(limits.json_bytes)),
        ("elements of an output in JSON", f"{JSON_ELEMENTS:,}; more only in binary"),
        (
            "bodies read and not yet answered, in all",
            f"{mebibytes(limits.inflight_bytes)}, or four of the largest",
        ),
        ("request line and headers", f"{limits.head_bytes // 1024} KiB"),
        (
            "connections",
            f"{limits.connections}; beyond them inference gets 503, {limits.reserved_connections} more are kept for health and metrics, then the longest idle one is closed",
        ),
        (
            "time for a head; idle connection",
            f"{limits.head_seconds:g} s; {limits.idle_seconds:g} s",
        ),
        (
            "time for a body or an answer",
            f"{limits.transfer_grace:g} s, and one second for every {rate}",
        ),
        (
            "age of a connection",
            f"{limits.connection_age:g} s; then the next answer says `Connection: close`, to rebalance",
        ),
    )
    return table(("", ""), rows)


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
        (
            code(name),
            meaning.removesuffix(".") + ("; only in `[[models]]`" if name == "path" else ""),
        )
        for name, meaning in descriptions(ModelEntry).items()
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


def messages(name: str) -> str:
    """Return the fields of one answer in JSON."""
    models: dict[str, type[BaseModel]] = {
        each.__name__: each
        for each in (
            *(Execution, Verdict, FallbackVerdict, EngineInspection, InspectedFile, EngineFit),
            *(Forecast, PlanStep, Refusal, ClassPlan, Difference),
        )
    }
    rows = ((code(field), about) for field, about in descriptions(models[name]).items())
    return table(("field", "meaning"), rows)


def precisions() -> str:
    """Return which backend runs which precision, from which compute capability on."""

    def cell(precision: Precision, backend: str) -> str:
        if precision not in RUNS[backend]:
            return "no"
        least = LEAST.get(precision)
        return ".".join(map(str, least)) if least and backend in DEVICE_BACKENDS else "yes"

    named: tuple[Precision, ...] = ("FP16", "BF16", "INT8", "FP8")
    rows = ((each, *(cell(each, backend) for backend in RUNS)) for each in named)
    return table(("", *map(code, RUNS)), rows)


def devices() -> str:
    """Return what NVIDIA's libraries build for, and what ONNX Runtime's providers serve."""

    def row(backend: str) -> Sequence[str]:
        library, provider = LIBRARIES.get(backend), PROVIDERS[backend]
        built = str(library.capabilities) if library else "no engine"
        served = provider.capabilities or (library.capabilities if library else "")
        parts = "of parts too" if provider.loads_parts else "of whole models only"
        types = ", ".join(sorted(provider.types)) if provider.types else "all"
        return code(backend), built, str(served), parts if library else "no engine", types

    heading = ("backend", "builds for", "serves on", "loads engines", "inputs and outputs of")
    return table(heading, map(row, PROVIDERS))


def tolerances() -> str:
    """Return what an output is allowed, by precision."""
    heading = (
        *("", "share of elements", "within, of value + largest", "all within, of largest more"),
        *("cosine", "top-1", "integers, booleans, strings equal", "zero"),
    )
    named = {**TOLERANCES, "FP32, converted against source": ROUNDING}
    return table(heading, (_tolerance(name, each) for name, each in named.items()))


def _tolerance(name: str, each: Tolerance) -> Sequence[str]:
    return (
        name,
        _percent(1 - each.outliers),
        f"{_percent(each.rtol)} + {_percent(each.scale)}",
        _percent(each.outlier_size),
        f"{each.cosine:g}",
        _percent(each.top1 or 0),
        _percent(1 - each.unequal),
        f"{each.zero:g}",
    )


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def shape_operators() -> str:
    """Return the operators that may be shape arithmetic."""
    return ", ".join(sorted(ARITHMETIC)) + "."


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


def faults(section: str) -> str:
    """Return the faults of one section, with what detects each and the tests that prove it."""
    rows = proofs.rows(proofs.marks(), "fault", section)
    return table(("fault", "detected by", "after", "test"), rows)


def events(section: str) -> str:
    """Return the events of one section, with what serves meanwhile."""
    rows = proofs.rows(proofs.marks(), "event", section)
    return table(("event", "what serves meanwhile", "what you see", "test"), rows)


def condition_states() -> str:
    """Return the conditions of a model in every state."""
    heading, *rows = proofs.condition_states()
    return table(heading, rows)


def dependencies() -> str:
    """Return the Python packages, who requires them and why."""
    rows = requirements.rows(requirements.PROJECT.read_text())
    return table(("package", "extras", "why"), rows)


def checks() -> str:
    """Return the sidecar's checks, with the docstring of each."""
    rows = (
        (
            code(each),
            "with golden" if each is Check.PROBE_LATENCY else f"{INTERVALS[each]:g} s",
            about,
        )
        for each, about in zip(Check, _docstrings(Check), strict=True)
    )
    return table(("check", "every", "ok when, and the reason when not"), rows)


def pages() -> str:
    """Return the question that each page begins with, in the order of the site.

    Raises:
        ValueError: A page begins otherwise.
    """
    site = tomllib.loads(SITE.read_text())["project"]
    names = [name for part in site["nav"] for group in part.values() for name in group]
    texts = {name: (SITE.parent / site["docs_dir"] / name).read_text() for name in names}
    asked = {name: re.match(r"# (.+)\n\n([^?]+\?)\s", text) for name, text in texts.items()}
    if silent := [name for name, found in asked.items() if not found]:
        raise ValueError(f"{silent} do not begin with the question that they answer")
    rows = (
        (" ".join(found[2].split()), f"[{found[1]}]({name})")
        for name, found in asked.items()
        if found and name != "index.md"
    )
    return table(("question", "page"), rows)


TABLES: Final[dict[str, Callable[..., str]]] = {
    "action-inputs": action_inputs,
    "alerts": alerts,
    "checks": checks,
    "condition-states": condition_states,
    "condition-types": condition_types,
    "configuration": configuration,
    "dependencies": dependencies,
    "devices": devices,
    "events": events,
    "faults": faults,
    "fields": fields,
    "messages": messages,
    "operator-metrics": operator_metrics,
    "pages": pages,
    "precisions": precisions,
    "preflight": preflight,
    "reasons": reasons,
    "remedies": remedies,
    "rules": rules,
    "server-limits": server_limits,
    "server-metrics": server_metrics,
    "settings": settings,
    "shape-operators": shape_operators,
    "sidecar-metrics": sidecar_metrics,
    "status-reasons": status_reasons,
    "tolerances": tolerances,
    "values": values,
}


def written(text: str) -> str:
    """Return a page or alerts with what the code decides."""

    def block(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return f"{found[1]}\n{TABLES[name](*arguments)}\n\n{found[3].lstrip()}"

    def remedy(found: re.Match[str]) -> str:
        return f"{found[1]}{found[3]}remedy: {_remedy(found[2], found[3])}\n"

    return REMEDY.sub(remedy, _BLOCK.sub(block, text))


def _remedy(named: str, indent: str) -> str:
    """Return the YAML of an alert's remedy, which may depend on the alert's label `reason`."""
    names, _, other = named.partition(" else ")
    cases = [(name, REMEDIES[Reason(name)]) for name in names.split()]
    if not other:
        ((_, only),) = cases
        return json.dumps(only, ensure_ascii=False)
    lines = [">-"]
    for name, text in cases:
        opening = "{{- else if" if len(lines) > 1 else "{{ if"
        lines += [f'{opening} eq $labels.reason "{name}" -}}}}', text]
    otherwise = REMEDIES[Reason(other)] if other in set(Reason) else other
    lines += ["{{- else -}}", otherwise, "{{- end }}"]
    return f"\n{indent}  ".join(lines)


def main() -> int:
    """Write what the code decides, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    drifted = False
    for page in (*sorted(ROOT.glob("docs/*.md")), ALERTS, RULES_TEST):
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
