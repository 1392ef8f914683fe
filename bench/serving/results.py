"""The result of one run: the document bench/results/serving.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.serving.load import Figures


@dataclass
class Row:
    """One server with one model over one transport."""

    model: str
    server: str
    transport: str
    figures: dict[int, Figures] = field(default_factory=dict)  # by connections: the quickest round
    memory_mb: float = 0.0  # the largest, after load
    failures: list[str] = field(default_factory=list)

    def add(self, connections: int, figures: Figures) -> None:
        """Keep the quicker of two rounds, as other load on the machine only slows them down."""
        before = self.figures.get(connections)
        if before is None or figures.per_second > before.per_second:
            self.figures[connections] = figures


@dataclass
class Bare:
    """`session.run` without a server: CPU time in µs, the smallest of all rounds."""

    title: str
    model_mb: float
    one_us: float
    batch_us: float  # of a whole batch
    batch: int


@dataclass(frozen=True)
class Aging:
    """The medians of what an aged server's figures are over a fresh one's."""

    rate_ratio: float  # of requests/s at 32 connections
    p50_ratio: float  # of a lone client's median latency
    turns: int
    throttled_by: str


@dataclass
class Results:
    """All figures of a run."""

    about: dict[str, Any]  # date, machine, versions, settings
    bare: dict[str, Bare] = field(default_factory=dict)  # by model
    rows: list[Row] = field(default_factory=list)
    aging: dict[str, Aging] = field(default_factory=dict)  # by model
    absent: dict[str, str] = field(default_factory=dict)  # server, or server and transport: why

    def row(self, model: str, server: str, transport: str) -> Row:
        """Return a row, new if there is none."""
        for item in self.rows:
            if (item.model, item.server, item.transport) == (model, server, transport):
                return item
        self.rows.append(Row(model, server, transport))
        return self.rows[-1]

    def add_batch(self, model: str, server: str, rows: int) -> None:
        """Record the largest batch that one of our servers has chosen at a start."""
        chosen: dict[str, list[int]] = self.about.setdefault("batch_rows", {})
        chosen.setdefault(f"{model}, {server}", []).append(rows)

    def find(self, model: str, server: str, transport: str, connections: int) -> Figures | None:
        """Return one measurement, if there is one."""
        for row in self.rows:
            if (row.model, row.server, row.transport) == (model, server, transport):
                return row.figures.get(connections)
        return None

    def of_model(self, model: str) -> Iterable[Row]:
        """Return the rows of a model."""
        return (row for row in self.rows if row.model == model)


def read(document: Mapping[str, Any]) -> Results:
    """Read a document that `dataclasses.asdict` returned."""

    def row(data: Mapping[str, Any]) -> Row:
        figures = {int(key): Figures(**value) for key, value in data["figures"].items()}
        return Row(**{**data, "figures": figures})

    return Results(
        about=document["about"],
        bare={name: Bare(**data) for name, data in document["bare"].items()},
        rows=[row(data) for data in document["rows"]],
        aging={name: Aging(**data) for name, data in document.get("aging", {}).items()},
        absent=document["absent"],
    )
