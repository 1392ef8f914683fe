"""Who answers a steady client beside hostile ones: the document bench/results/hostile.json, its tables, and our limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.serving.servers import OURS
from hack.tables.markdown import table

KEPT: Final = 900  # connections that a server of ours keeps open
FLOOD: Final = 2000  # more than that
PROBES: Final = 3  # after which Kubernetes takes a pod for unready
MEMORY_MB: Final = 2000.0  # of a server: above, it ends as the kernel would end a pod
# why a server has to be started again
OUT_OF_MEMORY: Final = "out of memory"
ENDED: Final = "ended"
NO_ANSWER: Final = "no answer afterwards"
_RATIO: Final = 2.0  # of our p99 beside clients that are kept, except those that send bodies slowly
_SENDING: Final = ("slow bodies", "slow messages")
# of ours once all clients are gone: free memory that its allocator keeps (`memory.py`), and some MB
_GROWTH_MB: Final = 150.0
_DISTURBED: Final = 0.1  # share of the cores


@dataclass(frozen=True)
class Beside:
    """A steady client, and its server, beside one kind of hostile clients."""

    connections: int  # of the hostile ones
    port: str
    kind: str
    answered: int  # of the steady client's requests: 200 with the right values
    failed: int
    p50_us: float | None
    p99_us: float | None
    alone_p99_us: float
    probes: int  # of PROBES that were answered in time
    peak_mb: float  # of the server, meanwhile
    after_mb: float | None  # once the hostile clients were gone, unless it had ended
    end: str = ""  # why the server had to be started again

    @property
    def name(self) -> str:
        """The hostile clients, in words."""
        return f"{self.connections:,} {self.port} {self.kind}"

    @property
    def is_good(self) -> bool:
        """Whether the client and the probes got all their answers."""
        return not self.failed and self.probes == PROBES and not self.end

    @property
    def text(self) -> str:
        """The latencies, and what went wrong, in few words."""
        parts = []
        if self.p50_us is not None and self.p99_us is not None:
            parts.append(f"{_ms(self.p50_us)} / {_ms(self.p99_us)}")
        if self.failed:
            parts.append(f"{self.failed} of {self.answered + self.failed} fail")
        if self.probes < PROBES:
            parts.append(f"{PROBES - self.probes} of {PROBES} probes fail")
        return "; ".join([*parts, *([self.end] if self.end else [])])


@dataclass
class Served:
    """One server beside all kinds, in turn."""

    server: str
    version: str = ""  # that it states itself
    before_mb: float = 0.0
    after_mb: float | None = (
        None  # a while after all hostile clients, unless the last ones ended it
    )
    others: float = (
        0.0  # share of the cores that other programs took while there were no hostile clients
    )
    beside: list[Beside] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # for which there was no time

    @property
    def problems(self) -> list[str]:
        """What exceeds the limits that we have for our own server."""
        problems = [f"{item.name}: {item.text}" for item in self.beside if not item.is_good]
        for item in self.beside:
            is_slow = item.p99_us is not None and item.p99_us > _RATIO * item.alone_p99_us
            if is_slow and item.connections == KEPT and item.kind not in _SENDING:
                problems.append(f"{item.name}: p99 is more than {_RATIO:g} times that alone")
        if self.left_out:
            problems.append(f"no time for {', '.join(self.left_out)}")
        grown = (self.after_mb or 0.0) - self.before_mb
        if grown > _GROWTH_MB:
            problems.append(f"{grown:.1f} MB are kept, more than {_GROWTH_MB:.0f}")
        return problems


@dataclass
class Comparison:
    """All servers of one run."""

    about: dict[str, Any]  # date, machine, versions
    servers: list[Served] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # server: why

    @property
    def problems(self) -> list[str]:
        """What exceeds our server's limits."""
        return [
            f"{served.server}, {problem}"
            for served in self.servers
            if served.server == OURS
            for problem in served.problems
        ]

    def list_gaps(self, servers: Sequence[str]) -> list[str]:
        """Return why the results are not worth publishing: not all servers met all kinds, or not alone on the cores."""
        measured = {served.server for served in self.servers}
        gaps = [f"ABSENT {name}: {why}" for name, why in self.absent.items()]
        gaps += [f"NOT MEASURED: {name}" for name in servers if name not in measured]
        for served in self.servers:
            if served.left_out:
                gaps.append(f"NO TIME, {served.server}: {', '.join(served.left_out)}")
            if served.others > _DISTURBED:
                gaps.append(
                    f"DISTURBED, {served.server}: other programs took {served.others:.0%} of the cores; end them"
                )
        return gaps


def read(document: Mapping[str, Any]) -> Comparison:
    """Read a document that `dataclasses.asdict` returned."""

    def read_served(data: Mapping[str, Any]) -> Served:
        return Served(**{**data, "beside": [Beside(**item) for item in data["beside"]]})

    return Comparison(
        document["about"], [read_served(data) for data in document["servers"]], document["absent"]
    )


def summarize(comparison: Comparison) -> str:
    """Return a row for each server."""
    header = (
        *("server", "all requests answered beside", "all probes", "slowest p99, ms"),
        *("most MB", "MB afterwards", "started again after"),
    )
    return table(header, [_summary(served) for served in comparison.servers])


def detail(comparison: Comparison) -> str:
    """Return a row for each kind of hostile clients, with what every server did beside it."""
    names = dict.fromkeys(item.name for served in comparison.servers for item in served.beside)
    header = ("hostile clients", *(served.server for served in comparison.servers))
    by_name = [{item.name: item.text for item in served.beside} for served in comparison.servers]
    return table(header, [(name, *(texts.get(name, "") for texts in by_name)) for name in names])


def describe_conditions(comparison: Comparison) -> str:
    """Return what the figures depend on, as one sentence."""
    about = comparison.about
    versions = [f"{served.server} {served.version}" for served in comparison.servers]
    versions += [f"{name} {version}" for name, version in about["versions"].items()]
    return (
        f"Measured {about['date']} on {about['cpu']}: {about['cores']} cores, {about['network']};"
        f" {', '.join(versions)}."
    )


def _summary(served: Served) -> tuple[str, ...]:
    count = len(served.beside)
    slowest = max((item.p99_us for item in served.beside if item.p99_us is not None), default=None)
    ends = [item.end for item in served.beside if item.end]
    reasons = [f"{end}: {ends.count(end)}" for end in dict.fromkeys(ends)]
    return (
        served.server,
        f"{sum(not item.failed for item in served.beside)} of {count} kinds",
        f"{sum(item.probes == PROBES for item in served.beside)} of {count}",
        "" if slowest is None else _ms(slowest),
        f"{max((item.peak_mb for item in served.beside), default=0.0):,.0f}",
        "" if served.after_mb is None else f"{served.after_mb:,.0f}",
        ", ".join(reasons) or "never",
    )


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.3g}" if microseconds < 1e6 else f"{microseconds / 1e3:,.0f}"
