"""A target on the page: what is changed for it, where the nodes run, parity and the engine."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from enginewright.contract.manifest import Change, OutputParity

from enginewright_cli.preflight import words
from enginewright_cli.preflight.html_charts import Tile, error_bar, split_bar, treemap
from enginewright_cli.preflight.html_markup import Child, Markup, tag
from enginewright_cli.preflight.html_parts import (
    Column,
    badge,
    details,
    facts,
    heading,
    name,
    names,
    table,
)
from enginewright_cli.preflight.placement import operator_of
from enginewright_cli.preflight.result import (
    PlacedNode,
    PlacedOperator,
    Placement,
    TargetResult,
    Verdict,
)

_TITLED: Final = 300  # characters of a tile's title
_MOST_NODES: Final = 100  # that a change names
_NAMED: Final = 10  # nodes elsewhere that are named without being asked for


def target(each: TargetResult, label: str, id_: str, level: int) -> Markup:
    """Return the section of one target."""
    head = tag(
        "div",
        heading(level, "of-target", label, id_=f"{id_}-title"),
        badge(each.verdict),
        tag("span", f"backend {each.backend}", class_="muted"),
        class_="title",
    )
    failure = None
    if each.verdict == "fail":
        reason = tag("strong", each.reason or "failed")
        failure = tag("p", reason, ": ", each.message, class_="said")
    body = [
        failure,
        _figures(each),
        _changes(each.changes, level + 1),
        _placement(each, level + 1) if each.placement else None,
        _parity(each, level + 1),
        _origin(each),
    ]
    return tag("section", head, body, id=id_, class_="card", aria_labelledby=f"{id_}-title")


def _figures(each: TargetResult) -> Markup:
    engine = each.engine
    size = None if each.engine_bytes is None else words.size(each.engine_bytes)
    build = None if each.build_seconds is None else words.duration(each.build_seconds)
    capabilities = ", ".join(engine.compute_capabilities) if engine else ""
    pairs: list[tuple[str, Child]] = [
        ("Compute nodes on the backend", _share_of_nodes(each)),
        ("Precision", each.precision),
        ("Engine", size),
        ("Built in", build),
        ("Compute capability", capabilities or None),
    ]
    if engine:
        partitions = words.counted(engine.partitions, "engine")
        error = engine.max_abs_error
        pairs += [
            ("Parts", "one engine, whole" if engine.partitions == 1 else partitions),
            ("Workspace", _bytes(engine.workspace_bytes)),
            ("Memory of the build", _bytes(engine.peak_memory_bytes)),
            ("Engine against prepared model", None if error is None else f"{error:.3g} at most"),
        ]
    return facts(pairs)


def _bytes(count: int | None) -> str | None:
    return None if count is None else words.size(count)


def _share_of_nodes(each: TargetResult) -> str | None:
    if each.nodes_total is None:
        return None
    return f"{each.nodes_accelerated or 0:,} of {each.nodes_total:,}"


def _changes(changes: Iterable[Change], level: int) -> Child:
    rows = []
    for each in changes:
        more = None
        if each.nodes:
            nodes = (tag("li", name(node)) for node in each.nodes)
            count = words.counted(len(each.nodes), "node")
            first = "The first " if len(each.nodes) == _MOST_NODES else ""
            more = details(f"{first}{count} concerned", tag("ul", nodes, class_="plain"))
        rows.append(tag("li", tag("strong", each.kind), ": ", each.message, more))
    if not rows:
        return None
    return [
        heading(level, "of-part", "What is changed on the way"),
        tag("ul", rows, class_="plain"),
    ]


def _placement(each: TargetResult, level: int) -> Child:
    placement = each.placement
    if placement is None or not placement.operators:
        return None
    total = each.nodes_total or sum(entry.count for entry in placement.operators)
    count = total - (each.nodes_accelerated or 0)
    share = each.compute_share_elsewhere
    bars = [_split("Nodes", count / max(1, total), f"{count:,} of {total:,} elsewhere")]
    if share is not None:
        bars.append(_split("Computing time", share, f"{words.share(share)} elsewhere"))
    told = f"{total - count} of {total} compute nodes run on backend {each.backend}"
    tiles = list(_tiles(placement, each.backend))
    figure = tag(
        "figure",
        treemap(tiles, f"Placement map: {told}; the tables below have the same figures"),
        tag("figcaption", _legend(each.backend, placement)),
    )
    outside = [entry for entry in placement.nodes if entry.elsewhere]
    return [
        heading(level, "of-part", "Placement"),
        bars,
        _outside(outside, count),
        figure,
        details("Operators, by computing time", _operators(placement)),
        details(_listed(placement), _nodes(placement)),
    ]


def _split(term: str, share: float, told: str) -> Markup:
    return tag(
        "div",
        tag("span", term, ": ", tag("span", told, class_="muted")),
        split_bar(share),
        class_="split-row",
    )


def _outside(nodes: list[PlacedNode], count: int) -> Child:
    if not count:
        return None
    shown = nodes[:_NAMED]
    rest = count - sum(each.elsewhere for each in shown)
    more = f" and {rest:,} more" if rest > 0 and shown else ""
    if not shown:
        return tag("p", words.counted(count, "node"), " elsewhere, whose names are not known")
    return tag("p", tag("strong", "Elsewhere: "), names(each.label for each in shown), more)


def _legend(backend: str, placement: Placement) -> Markup:
    keys = tag(
        "span",
        tag("span", tag("span", class_="key on"), f"on backend {backend}"),
        tag("span", tag("span", class_="key off"), "elsewhere, hatched"),
        class_="keys",
    )
    shape = (
        f" {words.counted(placement.shape_nodes, 'node')} of shape arithmetic may run anywhere and"
        " cannot be seen here."
        if placement.shape_nodes
        else ""
    )
    return tag(
        "div",
        keys,
        tag(
            "span",
            "Each area is a node's share of the computing time, as profiled on a CPU; nodes of one"
            f" operator lie together. Point at a tile for its name.{shape}",
        ),
    )


def _tiles(placement: Placement, backend: str) -> Iterable[Tile]:
    listed: dict[str, list[PlacedNode]] = {}
    for node in placement.nodes:
        operator = operator_of(node.label)
        listed.setdefault(operator, []).append(node)
        for part, kind, where in (
            (node.count - node.elsewhere, "on", f"on backend {backend}"),
            (node.elsewhere, "off", "elsewhere"),
        ):
            if part:
                weight = (node.share or 0.0) * part / node.count
                label = words.visible(node.label, _TITLED)
                title = f"{label}: {words.share(weight)} of the computing time, {where}"
                shown = node.label.rpartition(" (")[0]
                times = f" x{part}" if part > 1 else ""
                yield Tile(weight, title, words.visible(shown, 60) + times, operator, kind)
    for each in placement.operators:
        yield from _rest(each, listed.get(each.operator, []), backend)


def _rest(each: PlacedOperator, listed: list[PlacedNode], backend: str) -> Iterable[Tile]:
    """Yield the nodes of an operator that are not listed, as one tile."""
    count = each.count - sum(node.count for node in listed)
    weight = (each.share or 0.0) - sum(node.share or 0.0 for node in listed)
    outside = each.elsewhere - sum(node.elsewhere for node in listed)
    if count > 0 and weight > 0:
        where = f"{outside} of them elsewhere" if outside else f"on backend {backend}"
        told = f"{words.counted(count, 'further node')} of {each.operator}"
        title = f"{told}: {words.share(weight)} of the computing time, {where}"
        kind = "off" if outside else "on"
        yield Tile(weight, title, f"{count} further", each.operator, kind)


def _operators(placement: Placement) -> Markup:
    columns = (
        Column("Operator"),
        Column("Nodes", "number"),
        Column("Elsewhere", "number"),
        Column("Computing time", "number"),
        Column("Of it elsewhere", "number"),
    )
    rows = (
        (
            name(each.operator),
            f"{each.count:,}",
            f"{each.elsewhere:,}",
            _share(each.share),
            _share(each.elsewhere_share),
        )
        for each in placement.operators
    )
    return table(None, columns, rows, "Placement by operator")


def _share(value: float | None) -> str:
    return "" if value is None else words.share(value)


def _listed(placement: Placement) -> str:
    count = sum(each.count for each in placement.nodes)
    total = sum(each.count for each in placement.operators)
    return "All compute nodes" if count == total else f"The costliest {count:,} of {total:,} nodes"


def _nodes(placement: Placement) -> Markup:
    columns = (
        Column("Node"),
        Column("Where"),
        Column("Count", "number"),
        Column("Computing time", "number"),
    )
    rows = (
        (name(each.label), _where(each), f"{each.count:,}", _share(each.share))
        for each in placement.nodes
    )
    return table(None, columns, rows, "Placement by node")


def _where(node: PlacedNode) -> str:
    if not node.elsewhere:
        return "backend"
    return "elsewhere" if node.elsewhere == node.count else f"{node.elsewhere} elsewhere"


def _parity(each: TargetResult, level: int) -> Child:
    parity = each.parity
    if parity is None:
        return None
    head = heading(level, "of-part", "Parity")
    engine = each.engine.outputs if each.engine else ()
    if not parity.outputs and not engine:
        return [head, tag("p", _unmeasured(parity.verdict, changed=bool(each.changes)))]
    return [
        head,
        _figures_of("Of the prepared model, over all samples. ", parity.outputs, parity.verdict),
        _figures_of("Of the engine, over all samples. ", engine, parity.verdict),
    ]


def _figures_of(
    what: str, outputs: Sequence[OutputParity], verdict: Literal["pass", "fail", "unknown"]
) -> Child:
    if not outputs:
        return None
    shown: Verdict = "fail" if verdict == "fail" else "pass"  # there are figures
    columns = (
        Column("Output"),
        Column("Compared with"),
        Column("Largest error", "number"),
        Column("1e-9 to 1, logarithmic", "wide"),
        Column("Relative", "number"),
        Column("Cosine", "number"),
        Column("Top 1 agrees", "number"),
        Column("New NaN", "number"),
        Column("New Inf", "number"),
    )
    rows = (_compared(output) for output in outputs)
    return table([what, badge(shown)], columns, rows, f"Parity: {what}")


def _unmeasured(verdict: str, *, changed: bool) -> str:
    if verdict == "fail":
        return "Outputs differ by more than their tolerance."
    if changed:
        return "No figures were kept of what these changes do to the outputs."
    return "Nothing to compare: the model is served as it came."


def _compared(each: OutputParity) -> tuple[Child, ...]:
    error, relative, agreement = each.max_abs_error, each.max_rel_error, each.top1_agreement
    return (
        name(each.name),
        each.compared_with + (", in distribution" if each.runs else ""),
        "" if error is None else f"{error:.3g}",
        None if error is None else error_bar(error),
        "" if relative is None else f"{relative:.3g}",
        "" if each.cosine is None else f"{each.cosine:.6f}",
        "" if agreement is None else words.share(agreement),
        f"{each.nan:,}",
        f"{each.inf:,}",
    )


def _origin(each: TargetResult) -> Child:
    pairs: list[tuple[str, Child]] = [
        (f"Version of {tool}", version) for tool, version in each.versions.items()
    ]
    pairs += [
        ("Key of the prepared model", name(each.prepared_key) if each.prepared_key else None),
        ("Key of the engine", name(each.engine_key) if each.engine_key else None),
        ("Digest of the engine", name(each.engine.sha256) if each.engine else None),
    ]
    known = [pair for pair in pairs if pair[1] is not None]
    return details("Versions and keys", facts(known)) if known else None
