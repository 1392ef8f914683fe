"""Writes what a run has measured into docs/reference/gpu-results.md, between its markers, and its date into README's table."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hack.gpu_proof.figure import draw_incident
from hack.gpu_proof.packing import ROOT
from hack.gpu_proof.pieces import PieceError

PAGE: Final = ROOT / "docs/reference/gpu-results.md"
FIGURE: Final = ROOT / "docs/gpu-incident.svg"
_BEGIN: Final = "<!-- hack/gpu-proof: results -->"
_END: Final = "<!-- /hack/gpu-proof -->"
_FOLDERS: Final = re.compile(r"(?<![\w.:])(?:/[\w.+-]+){2,}/")  # of the machine
_NOT_RUN: Final = "not run"
_LONGEST: Final = 260  # characters of a message in a table

Figures = Mapping[str, Any]


def write(results: Sequence[Path], page: Path = PAGE, figure: Path = FIGURE) -> None:
    """Put the results of runs into the page, the oldest first: of each step the last result counts; draw the incident.

    Raises:
        PieceError: the results or the page cannot be read, or runs differ in device, driver or versions.
    """
    runs = [_read_run(path) for path in results]
    for run, path in zip(runs[1:], results[1:], strict=True):
        if _identify(run) != _identify(runs[0]):
            raise PieceError(
                f"{path} is of {_identify(run)}, not of {_identify(runs[0])}: report it alone"
            )
    text = _read(page)
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not rest:
        raise PieceError(f"{page} has no line {_BEGIN}: restore the page")
    page.write_text(f"{before}{_BEGIN}\n\n{render(runs)}\n{_END}{after}")
    incident = _merge(runs).get("incident", {})
    if incident.get("status") == "passed":
        figure.write_text(draw_incident(incident["figures"]))


def _read_run(path: Path) -> Figures:
    try:
        run: Figures = json.loads(_read(path))
    except ValueError as error:
        raise PieceError(f"{path}: {error}; name the results.json of a run") from error
    return run


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise PieceError(f"{path}: {error}; name the results.json of a run") from error


def _identify(run: Figures) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{run['machine']['devices'][0]}, Python {run['machine']['python']}; {versions}"


def _merge(runs: Sequence[Figures]) -> dict[str, dict[str, Any]]:
    """Return the last result of each step, with the date of its run where that is not the last run's."""
    last = runs[-1]
    return {name: _find_result(runs, name, last["date"]) for name in last["steps"]}


def _find_result(runs: Sequence[Figures], name: str, today: str) -> dict[str, Any]:
    steps = ((run, run["steps"].get(name)) for run in reversed(runs))
    run, step = next(
        ((run, step) for run, step in steps if step and step["status"] != _NOT_RUN),
        (runs[-1], runs[-1]["steps"][name]),
    )
    return {**step, **({} if run["date"] == today else {"date": run["date"]})}


def render(runs: Sequence[Figures]) -> str:
    """Return the results as Markdown."""
    document, results = runs[-1], _merge(runs)
    device, driver, memory, capability = (
        part.strip() for part in document["machine"]["devices"][0].split(",")
    )
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    machine = (
        f"{document['date']}: **{device}** ({memory}, compute capability {capability}), driver"
        f" {driver}, Python {document['machine']['python']}; {versions}."
    )
    lines = [machine, ""]
    for group in dict.fromkeys(item["group"] for item in results.values()):
        steps = {n: s for n, s in results.items() if s["group"] == group}
        lines += [f"### {group.upper() if group == 'cuda' else 'TensorRT'}", ""]
        lines += _models({n: s for n, s in steps.items() if _is_model(n)})
        lines += ["| step | shows | result | figures |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {_cell(step['about'])} | {_status(step)} | {_cell(_describe(name, step))} |"
            for name, step in steps.items()
            if not _is_model(name)
        ]
        lines.append("")
    return "\n".join(lines)


def _is_model(name: str) -> bool:
    return name.startswith(("model-", "engine-"))


def _models(steps: Mapping[str, Figures]) -> list[str]:
    """Return the table of real models, as they are served."""
    head = (
        "| model | result | nodes on the provider / elsewhere | ready after | p50 of the usual sizes |"
        " largest error | requests/s from one connection |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    for name, step in steps.items():
        figures = step.get("figures", {})
        seen = figures.get("served", figures)
        if step["status"] != "passed":
            lines.append(
                f"| {name} | {_status(step)}: {_cell(step.get('message', ''))} | | | | | |"
            )
            continue
        fallback = seen.get("fallback") or {}
        total, elsewhere = fallback.get("nodes_total", 0), fallback.get("nodes_elsewhere", 0)
        usual = seen.get("usual") or {}
        error = seen.get("parity_max_abs_error")
        lines.append(
            f"| {name} | {_status(step)} | {total - elsewhere} / {elsewhere} | {seen.get('ready_seconds')} s |"
            f" {_milliseconds(usual.get('p50'))} | {'' if error is None else f'{error:.1e}'} |"
            f" {figures.get('load', {}).get('requests_per_second', '')} |"
        )
    return [*lines, ""]


def _status(step: Figures) -> str:
    return f"{step['status']} on {step['date']}" if "date" in step else str(step["status"])


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f} ms"


def _describe(name: str, step: Figures) -> str:
    if step["status"] != "passed":
        return str(step.get("message", ""))
    figures = step["figures"]
    return _DESCRIBED[name](figures) if name in _DESCRIBED else ""


def _partial(figures: Figures) -> str:
    return f"Forbid: {figures['Forbid']['failed'].get('placement')}; Allow: ready"


def _whole(figures: Figures) -> str:
    return "; ".join(figures["failed"].values()) or str(figures["ended"])


def _describe_loss(figures: Figures) -> str:
    return (
        f"answers by code {figures['answers']}, unready after {figures['unready_after_seconds']} s, not live"
        f" after {figures['not_live_after_seconds']} s; {'; '.join(figures['failed'].values())}"
    )


def _cost(figures: Figures) -> str:
    return (
        f"shape {figures['shape']}: bare p50 {figures['bare']['p50_ms']} ms,"
        f" {figures['bare_runs_per_second']} runs/s; served from one connection"
        f" {_rate(figures['connections_1'])}, from four {_rate(figures['connections_4'])}:"
        f" {figures['share_of_bare']:.0%} of bare"
    )


def _rate(row: Figures) -> str:
    return (
        f"{row['requests_per_second']} requests/s (p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms)"
    )


def _batching(figures: Figures) -> str:
    return "; ".join(f"{name}: {_rate(row)}" for name, row in figures.items())


def _bindings(figures: Figures) -> str:
    rows = []
    for name, row in figures.items():
        ways = [
            f"{way} {row[way].get('p50_ms', row[way].get('refused'))}"
            for way in ("run", "bound", "graph")
            if way in row
        ]
        rows.append(f"{name}: p50 in ms {', '.join(ways)}")
    return "; ".join(rows)


def _planning(figures: Figures) -> str:
    return "; ".join(
        f"{search}: {row['same_size']['p50_ms']} ms at one size,"
        f" {row['other_size_each_time']['p50_ms']} ms where each request has another"
        for search, row in figures.items()
    )


def _incident(figures: Figures) -> str:
    plain = ", ".join(
        f"{name} {row['p50_ms']} ms (x{figures['factors'][name]})"
        for name, row in figures["plain"].items()
    )
    return (
        f"plain program: {plain}; with the product the first is served, the second refused:"
        f" {figures['after']['failed'].get('placement')}"
    )


def _library(figures: Figures) -> str:
    return "; ".join(
        f"{name}: builder {row['builder_seconds']} s, build {row['build_seconds']} s"
        for name, row in figures.items()
    )


def _refusals(figures: Figures) -> str:
    return "; ".join(f"{name}: {row['reason']}: {row['message']}" for name, row in figures.items())


def _workspace(figures: Figures) -> str:
    return (
        f"{figures['reason'] or 'built'}, workspace {figures['workspace_bytes']},"
        f" stepped down {figures['stepped_down']} times; {figures['message']}"
    )


def _build_time(figures: Figures) -> str:
    return "; ".join(
        f"{name}: bare {row['bare_seconds']} s, product's build {row['build_seconds']:.1f} s, whole Job"
        f" {row['job_seconds']} s"
        for name, row in figures.items()
    )


def _memory_request(figures: Figures) -> str:
    return f"{figures['large'][0]}: {figures['large'][1]}; the next one {figures['after']}, still ready"


def _memory_load(figures: Figures) -> str:
    return str(figures["ended"] or "; ".join(figures["failed"].values()))


def _two(figures: Figures) -> str:
    used = ", ".join(f"{figure / 2**30:.1f}" for figure in figures["used_bytes"] if figure)
    return (
        f"GiB in use before, with one, under load beside another: {used}; {_rate(figures['load'])}"
    )


def _timings(figures: Figures) -> str:
    seconds = ", ".join(f"{figure:.1f}" for figure in figures["build_seconds"])
    return f"build seconds first, second: {seconds}; kept {figures['kept_bytes']} bytes"


_DESCRIBED: Final[Mapping[str, Callable[[Figures], str]]] = {
    "partial-fallback": _partial,
    "whole-fallback": _whole,
    "two-pods-on-one-device": _two,
    "memory-in-a-request": _memory_request,
    "memory-at-load": _memory_load,
    "lose-device": _describe_loss,
    "bindings-and-graphs": _bindings,
    "convolution-planning": _planning,
    "serving-cost": _cost,
    "batching": _batching,
    "incident": _incident,
    "library": _library,
    "timing-cache": _timings,
    "workspace": _workspace,
    "refusals": _refusals,
    "build-time": _build_time,
}


def _cell(text: str) -> str:
    """Return text that stays within one cell of a table."""
    flat = " ".join(_FOLDERS.sub("", str(text)).replace("|", "/").split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 2] + " …"
