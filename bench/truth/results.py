"""What the comparators said: of each lie and artefact while a case runs, and summed up in bench/results/truth.json."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.truth.comparators import OURS, PARTS, PEERS, PRECISIONS, WHOLES
from bench.truth.ladder import FACTORS
from bench.truth.lies import Lie

SIZES: Final = {
    "below 20%": (0.0, 0.2),
    "20% to 50%": (0.2, 0.5),
    "50% and more": (0.5, float("inf")),
}
TUNED: Final = ", tuned"  # a peer at its strictest tolerance, by precision, with no more false alarms than ours


@dataclass
class JudgedLie:
    """A lie, and whether the comparators find it."""

    lie: Lie
    verdicts: dict[str, tuple[str, str, str]]  # ours by precision, see `Verdicts`
    rungs: dict[str, int]  # peers'
    rounding: dict[str, float] = field(
        default_factory=dict
    )  # by precision, over the slice's spread


@dataclass
class Spreads:
    """Errors along one axis of an output relative to the spread of its parts: quantiles 50%, 90%, 99%, 100%."""

    output: str
    axis: int
    moving: int  # parts
    of: int
    errors: list[float]
    rounding: list[float]  # likewise, of the emulation


@dataclass
class Constants:
    """What the rule on parts says with other constants."""

    share: float
    ratio: float
    fails: bool
    unknown: int  # parts


@dataclass
class JudgedVariant:
    """An artefact that may serve: whether it is honest, and what the comparators say if so."""

    name: str
    precision: str
    refused: str = ""  # why it has no outputs
    share: float | None = None  # in which its results are the source's
    honest: bool = False
    verdicts: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # ours, by output
    rungs: dict[str, int] = field(default_factory=dict)  # peers', of the worst output
    parts: int = 0
    unknown: int = 0  # of them
    spreads: list[Spreads] = field(default_factory=list)
    constants: list[Constants] = field(default_factory=list)


@dataclass
class CaseResult:
    """All that was judged of one model."""

    name: str
    kind: str
    file: str
    samples: int
    lies: list[JudgedLie]
    variants: list[JudgedVariant]
    parts: dict[str, dict[str, int]]  # by precision: all, moving, coarse
    seconds: dict[str, float]


@dataclass(frozen=True)
class Detections:
    """How many of the lies of one kind and size a comparator finds in one precision."""

    comparator: str
    precision: str
    kind: str
    size: str
    told: int
    detected: int
    unknown: int = 0


@dataclass(frozen=True)
class Alarms:
    """How many honest artefacts of one precision a comparator fails."""

    comparator: str
    precision: str
    honest: int
    alarms: int
    unknown: int = 0  # that do not fail, but have parts that are not judged
    tolerance: float = 1.0  # of a peer, over its default


@dataclass(frozen=True)
class Model:
    """What was made of a model."""

    name: str
    kind: str
    file: str
    samples: int
    lies: int
    honest: int
    dishonest: dict[str, float]  # by artefact: the share of results that agree
    refused: dict[str, str]
    parts: dict[str, dict[str, int]]


@dataclass
class Results:
    """The document."""

    about: dict[str, Any]  # date, machine, versions
    models: list[Model] = field(default_factory=list)
    lies: list[Detections] = field(default_factory=list)
    alarms: list[Alarms] = field(default_factory=list)
    false_alarms: dict[str, str] = field(
        default_factory=dict
    )  # ours, by model and artefact: outputs
    unknown: dict[str, dict[str, int]] = field(default_factory=dict)  # by precision: parts, unknown
    absent: dict[str, str] = field(default_factory=dict)  # peer: why

    def count(self, comparator: str, precision: str, *sizes: str) -> Detections:
        """Return the sum over kinds and these sizes."""
        rows = [
            row
            for row in self.lies
            if (row.comparator, row.precision) == (comparator, precision) and row.size in sizes
        ]
        told, detected, unknown = (
            sum(getattr(row, name) for row in rows) for name in ("told", "detected", "unknown")
        )
        return Detections(comparator, precision, "", "", told, detected, unknown)

    def alarms_of(self, comparator: str, precision: str) -> Alarms | None:
        """Return the false alarms of a comparator."""
        rows = (row for row in self.alarms if row.comparator == comparator)
        return next((row for row in rows if row.precision == precision), None)

    def comparators(self) -> list[str]:
        """Return all comparators, ours first."""
        return list(dict.fromkeys(row.comparator for row in self.alarms))


def size_of(lie: Lie) -> str:
    """Return the size class of a lie; NaN and missing rows are the largest."""
    return next(
        (name for name, (low, high) in SIZES.items() if low <= lie.size < high), [*SIZES][-1]
    )


def sum_up(
    about: Mapping[str, Any], cases: Sequence[CaseResult], absent: Mapping[str, str]
) -> Results:
    """Return the document of a run."""
    results = Results(dict(about), absent=dict(absent))
    results.models = [_describe(case) for case in cases]
    for precision in PRECISIONS:
        honest = [
            row
            for case in cases
            for row in case.variants
            if row.honest and row.precision == precision
        ]
        results.unknown[precision] = {
            "parts": sum(row.parts for row in honest),
            "unknown": sum(row.unknown for row in honest),
        }
        told = [item for case in cases for item in case.lies]
        ours = _count_ours(honest, precision)
        results.alarms += ours
        for name, choose in _OURS.items():
            results.lies += _count_found(
                name, precision, [(item.lie, choose(item.verdicts[precision])) for item in told]
            )
        for peer in PEERS:
            if all(peer in item.rungs for item in told):
                _count_peer(results, peer, precision, told, honest, ours[0].alarms)
    results.false_alarms = {
        f"{case.name}, {row.name}, {row.precision}": ", ".join(failing)
        for case in cases
        for row in case.variants
        if (failing := [output for output, said in row.verdicts.items() if "fails" in said])
    }
    return results


def _describe(case: CaseResult) -> Model:
    return Model(
        case.name,
        case.kind,
        case.file,
        case.samples,
        len(case.lies),
        sum(row.honest for row in case.variants),
        {
            f"{row.name}, {row.precision}": round(row.share, 4)
            for row in case.variants
            if row.share is not None and not row.honest
        },
        {f"{row.name}, {row.precision}": row.refused for row in case.variants if row.refused},
        case.parts,
    )


def _find_worst(verdicts: Iterable[str]) -> str:
    return max(verdicts, key=("agrees", "unknown", "fails").index, default="agrees")


_OURS: Final[dict[str, Callable[[tuple[str, str, str]], str]]] = {
    OURS: lambda said: _find_worst(said[:2]),
    PARTS: lambda said: said[1],
    WHOLES: lambda said: said[0],
}


def _count_ours(honest: Sequence[JudgedVariant], precision: str) -> list[Alarms]:
    counts = []
    for name, choose in _OURS.items():
        worst = [_find_worst(map(choose, row.verdicts.values())) for row in honest]
        counts.append(
            Alarms(name, precision, len(honest), worst.count("fails"), worst.count("unknown"))
        )
    return counts


def _count_found(
    comparator: str, precision: str, verdicts: Iterable[tuple[Lie, str]]
) -> list[Detections]:
    counts: dict[tuple[str, str], list[int]] = {}
    for lie, verdict in verdicts:
        row = counts.setdefault((lie.kind, size_of(lie)), [0, 0, 0])
        row[0] += 1
        row[1] += verdict == "fails"
        row[2] += verdict == "unknown"
    return [
        Detections(comparator, precision, kind, size, *row) for (kind, size), row in counts.items()
    ]


def _count_peer(
    results: Results,
    peer: str,
    precision: str,
    told: Sequence[JudgedLie],
    honest: Sequence[JudgedVariant],
    most: int,
) -> None:
    """Add a peer at its default, and at its strictest tolerance with at most so many false alarms."""
    rungs = sorted((row.rungs[peer] for row in honest), reverse=True)
    tuned = rungs[most] if len(rungs) > most else 0
    for name, rung in ((peer, 0), (f"{peer}{TUNED}", tuned)):
        alarms = sum(item > rung for item in rungs)
        factor = FACTORS[min(rung, len(FACTORS) - 1)]
        results.alarms.append(Alarms(name, precision, len(honest), alarms, tolerance=factor))
        results.lies += _count_found(
            name,
            precision,
            [(item.lie, "fails" if item.rungs[peer] > rung else "agrees") for item in told],
        )


def read_case(document: Mapping[str, Any]) -> CaseResult:
    """Read what a case's process wrote."""

    def variant(data: Mapping[str, Any]) -> JudgedVariant:
        spreads = [Spreads(**item) for item in data["spreads"]]
        constants = [Constants(**item) for item in data["constants"]]
        return JudgedVariant(**{**data, "spreads": spreads, "constants": constants})

    return CaseResult(
        **{
            **document,
            "lies": [JudgedLie(**{**item, "lie": Lie(**item["lie"])}) for item in document["lies"]],
            "variants": [variant(item) for item in document["variants"]],
        }
    )


def read(document: Mapping[str, Any]) -> Results:
    """Read a document that `dataclasses.asdict` returned."""
    kinds = (("models", Model), ("lies", Detections), ("alarms", Alarms))
    rows: dict[str, Any] = {name: [kind(**row) for row in document[name]] for name, kind in kinds}
    return Results(**{**document, **rows})
