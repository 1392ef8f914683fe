"""The page of `--html`: whole in one file, without scripts, and fit to be attached to a review.

A browser that shows it asks nobody for anything: a content security policy in it forbids that.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import PurePath
from typing import Final

from enginewright.contract.manifest import Latency, TensorSpec

from enginewright_cli.preflight import words
from enginewright_cli.preflight.html_charts import Quantiles, bar, box_plots
from enginewright_cli.preflight.html_markup import Child, Markup, tag
from enginewright_cli.preflight.html_parts import (
    Column,
    badge,
    details,
    facts,
    heading,
    name,
    section,
    table,
)
from enginewright_cli.preflight.html_target import target
from enginewright_cli.preflight.result import (
    Found,
    Graph,
    ModelFacts,
    Result,
    Verdict,
    Weight,
    worst,
)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHOWN_NODES: Final = 5
_SHOWN_OPERATORS: Final = 12


def page(results: Sequence[Result]) -> str:
    """Return the page about one model or several."""
    single = results[0] if len(results) == 1 else None
    verdict = worst(tuple(each.verdict for each in results))
    title = _title(single.source) if single else words.counted(len(results), "model")
    articles = [
        _article(each, f"m{index}", 1 if single else 2) for index, each in enumerate(results, 1)
    ]
    head = None if single else _overview(results, verdict)
    seconds = sum(each.seconds for each in results)
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        tag("header", tag("p", "Enginewright preflight", class_="muted"), head),
        tag("main", articles, id="report"),
        tag(
            "footer",
            tag(
                "p",
                f"Found out in {words.duration(seconds)} by ",
                tag("code", "enginewright preflight"),
                ", which runs the stages of the Jobs. Times are this machine's.",
            ),
        ),
    )
    document = tag("html", _head(f"{title}: {verdict} (preflight)"), body, lang="en")
    return f"<!doctype html>\n{document}\n"


def _head(title: str) -> Markup:
    style = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )


def _title(source: str) -> str:
    return PurePath(source).name or source


def _overview(results: Sequence[Result], verdict: Verdict) -> Child:
    good = sum(each.verdict != "fail" for each in results)
    columns = (Column("Model"), Column("Verdict"), Column("Targets"), Column("Findings", "number"))
    rows = [
        (
            tag("a", name(each.source), href=f"#m{index}"),
            badge(each.verdict),
            _verdicts(each),
            f"{len(each.findings):,}",
        )
        for index, each in enumerate(results, 1)
    ]
    return [
        tag(
            "div",
            heading(1, "of-page", words.counted(len(results), "model")),
            badge(verdict),
            class_="title",
        ),
        tag("p", f"{good} of {len(results)} can be deployed.", class_="verdict"),
        table(None, columns, rows, "Models"),
    ]


def _verdicts(result: Result) -> str:
    return ", ".join(f"{label}: {each.verdict}" for label, each in result.targets.items())


def _article(result: Result, id_: str, level: int) -> Markup:
    below = level + 1
    parts: list[tuple[str, str, Child]] = [
        (f"{id_}-findings", f"Findings ({len(result.findings)})", _findings(result)),
        (f"{id_}-targets", "Targets", _targets(result, id_, below)),
    ]
    if any(each.latency for each in result.targets.values()):
        parts.append((f"{id_}-latency", "Latency", _latency(result)))
    if result.model and (result.model.inputs or result.model.graph):
        parts.append((f"{id_}-model", "Model", _model(result.model, below + 1)))
    links = (tag("li", tag("a", title, href=f"#{place}")) for place, title, _ in parts)
    label = _title(result.source)
    return tag(
        "article",
        tag(
            "div",
            heading(level, "of-page", words.visible(label, 200), id_=f"{id_}-title"),
            badge(result.verdict),
            class_="title",
        ),
        tag("p", name(result.source, 1000), class_="muted"),
        tag("p", _sentence(result), class_="verdict"),
        _facts(result),
        tag("nav", tag("ul", links), aria_label=f"Sections about {words.visible(label, 200)}"),
        (section(place, below, title, content) for place, title, content in parts),
        id=id_,
        aria_labelledby=f"{id_}-title",
    )


def _sentence(result: Result) -> str:
    failed = [label for label, each in result.targets.items() if each.verdict == "fail"]
    count = words.counted(len(result.targets), "target")
    if result.verdict == "fail":
        return (
            f"Not deployable: of {count}, {', '.join(failed)} would not serve it."
            if failed
            else "Not deployable."
        )
    if result.verdict == "warn":
        return f"Deployable on {count}, with something to know first."
    return f"Deployable on {count}, whole and without warnings."


def _facts(result: Result) -> Child:
    model = result.model
    if model is None:
        return tag("p", "The model could not be fetched.")
    known = None if model.opset is None else str(model.opset)
    producer = model.graph.producer if model.graph else ""
    return facts(
        [
            ("Size", words.size(model.size_bytes)),
            ("Opset", known),
            ("IR version", None if model.ir_version is None else str(model.ir_version)),
            ("Nodes in the file", None if model.nodes is None else f"{model.nodes:,}"),
            ("Exported by", name(producer) if producer else None),
            ("Digest", name(model.digest)),
            ("Result", "of an earlier run: nothing has changed" if result.cached else None),
        ]
    )


def _findings(result: Result) -> Child:
    if not result.findings:
        return tag("p", "None.")
    return [_finding(each) for each in result.findings]


def _finding(each: Found) -> Markup:
    is_error = each.severity == "error"
    sign = badge("fail" if is_error else "warn", each.severity)
    where = f"stage {each.stage}; target {', '.join(each.targets)}"
    return tag(
        "div",
        tag(
            "div",
            sign,
            tag("strong", each.reason),
            tag("span", where, class_="muted"),
            class_="title",
        ),
        tag("p", each.message, class_="said"),
        _finding_nodes(each),
        tag("p", tag("strong", "Remedy: "), each.remedy, class_="said remedy")
        if each.remedy
        else None,
        (
            [
                tag("p", "Or, for this command, with sizes of yours:"),
                tag("pre", tag("code", "\n".join(each.options))),
            ]
            if each.options
            else None
        ),
        class_=f"card finding {each.severity}",
    )


def _finding_nodes(each: Found) -> Child:
    if not each.nodes:
        return None
    items = tag("ul", (tag("li", name(node)) for node in each.nodes), class_="plain")
    rest = each.node_count - len(each.nodes)
    more = tag("p", f"and {rest:,} more") if rest > 0 else None
    if len(each.nodes) <= _SHOWN_NODES:
        return [items, more]
    return details(words.counted(each.node_count, "node"), items, more)


def _targets(result: Result, id_: str, level: int) -> Child:
    columns = (
        Column("Target"),
        Column("Verdict"),
        Column("Backend"),
        Column("Reason"),
        Column("On the backend", "number"),
        Column("Engine", "number"),
        Column("Build", "number"),
        Column("p50", "number"),
        Column("p99", "number"),
    )
    rows = []
    places = {label: f"{id_}-t{index}" for index, label in enumerate(result.targets, 1)}
    for label, each in result.targets.items():
        nodes = "" if each.nodes_total is None else f"{each.nodes_accelerated}/{each.nodes_total}"
        latency = each.latency
        rows.append(
            (
                tag("a", label, href=f"#{places[label]}"),
                badge(each.verdict),
                each.backend,
                each.reason or "",
                nodes,
                "" if each.engine_bytes is None else words.size(each.engine_bytes),
                "" if each.build_seconds is None else words.duration(each.build_seconds),
                words.duration(latency.p50) if latency else "",
                words.duration(latency.p99) if latency else "",
            )
        )
    return [
        table(None, columns, rows, "Targets"),
        (target(each, label, places[label], level + 1) for label, each in result.targets.items()),
    ]


def _latency(result: Result) -> Child:
    measured = {label: each.latency for label, each in result.targets.items() if each.latency}
    columns = (
        Column("Target"),
        Column("Shapes"),
        Column("p50", "number"),
        Column("p90", "number"),
        Column("p99", "number"),
        Column("Runs", "number"),
        Column("Rows a second", "number"),
        Column("Memory", "number"),
        Column("Device memory", "number"),
    )
    rows = [Quantiles(label, each.p50, each.p90, each.p99) for label, each in measured.items()]
    figures = [(label, *_measured(latency)) for label, latency in measured.items()]
    missing = [label for label, each in result.targets.items() if not each.latency]
    absent = (
        f" Not measured, because there is no device or no pass: {', '.join(missing)}."
        if missing
        else ""
    )
    told = "; ".join(f"{row.name}: p50 {words.duration(row.p50)}" for row in rows)
    return [
        tag(
            "figure",
            box_plots(rows, f"Latency of a run. {told}; the table below has all figures"),
            tag(
                "figcaption",
                "Thick line: p50. Box: p50 to p90. Whisker: p90 to p99. Below the median nothing is"
                f" drawn, since nothing was kept of it.{absent}",
            ),
        ),
        table(None, columns, figures, "Latency by target"),
    ]


def _measured(latency: Latency) -> tuple[Child, ...]:
    memory, device = latency.peak_memory_bytes, latency.peak_device_memory_bytes
    return (
        latency.shapes or "",
        words.duration(latency.p50),
        words.duration(latency.p90),
        words.duration(latency.p99),
        f"{latency.samples:,}",
        "" if latency.throughput is None else f"{latency.throughput:,.4g}",
        "" if memory is None else words.size(memory),
        "" if device is None else words.size(device),
    )


def _model(model: ModelFacts, level: int) -> Child:
    tensors = [("input", each) for each in model.inputs]
    tensors += [("output", each) for each in model.outputs]
    columns = (Column("Name"), Column("Is"), Column("Type"), Column("Shape"))
    rows = (_tensor(kind, each) for kind, each in tensors)
    return [
        [
            heading(level, "of-part", "Inputs and outputs"),
            table(None, columns, rows, "Inputs and outputs"),
        ]
        if tensors
        else None,
        _graph(model.graph, level) if model.graph else None,
    ]


def _tensor(kind: str, each: TensorSpec) -> tuple[Child, ...]:
    return name(each.name), kind, each.dtype, name(words.shape(each.shape))


def _graph(graph: Graph, level: int) -> Child:
    opsets = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opsets.items()
    )
    elements = sum(each.elements for each in graph.weight_types)
    size = sum(each.size_bytes for each in graph.weight_types)
    types = "; ".join(
        f"{each.dtype}: {each.elements:,} in {words.counted(each.tensors, 'tensor')},"
        f" {words.size(each.size_bytes)}"
        for each in graph.weight_types
    )
    return [
        heading(level, "of-part", "Graph"),
        facts(
            [
                ("Opsets imported", name(opsets) if opsets else None),
                ("Operators", f"{graph.operator_types:,} kinds"),
                ("Functions", f"{graph.functions:,}" if graph.functions else None),
                ("Constants", f"{elements:,} elements, {words.size(size)}"),
                ("By type", types or None),
                (
                    "In external data",
                    words.size(graph.external_bytes) if graph.external_bytes else None,
                ),
            ]
        ),
        _operators(graph),
        details("Largest constants", _weights(graph.largest_weights))
        if graph.largest_weights
        else None,
    ]


def _operators(graph: Graph) -> Child:
    columns = (
        Column("Operator"),
        Column("Nodes", "number"),
        Column("Of all nodes", "wide"),
        Column("Constants read", "number"),
        Column("Of all constants", "wide"),
    )
    count = sum(each.count for each in graph.operators) or 1
    size = sum(each.size_bytes for each in graph.weight_types)
    rows = [
        (
            name(each.operator),
            f"{each.count:,}",
            bar(each.count / count),
            words.size(each.weight_bytes) if each.weight_bytes else "",
            bar(each.weight_bytes / size) if size else None,
        )
        for each in graph.operators
    ]
    first, rest = rows[:_SHOWN_OPERATORS], rows[_SHOWN_OPERATORS:]
    missing = graph.operator_types - len(rows)
    more = f" (and {missing:,} that are not listed)" if missing else ""
    return [
        table(None, columns, first, "Operators by number of nodes"),
        details(
            words.counted(len(rest), "further operator") + more,
            table(None, columns, rest, "Further operators by number of nodes"),
        )
        if rest
        else None,
    ]


def _weights(weights: Sequence[Weight]) -> Markup:
    columns = (Column("Constant"), Column("Type"), Column("Shape"), Column("Size", "number"))
    rows = (
        (name(each.name), each.dtype, words.shape(each.shape), words.size(each.size_bytes))
        for each in weights
    )
    return table(None, columns, rows, "Largest constants")
