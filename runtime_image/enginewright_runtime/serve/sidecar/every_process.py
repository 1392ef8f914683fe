"""Golden inferences of a server with several processes: each runs every sample.

They share the work of clients' requests, so each must keep the promise, and the worst result counts. One
after another, since the sidecar's memory holds one response.
"""

from collections.abc import Sequence
from dataclasses import replace

from enginewright_runtime.serve.sidecar.golden import GoldenProbe, ProbeResult


async def probe_all(probes: Sequence[GoldenProbe], sample: str, defer: float) -> ProbeResult:
    """Run a sample in every process.

    Args:
        probes: of each process; that of the first process first.
        sample: the golden sample.
        defer: seconds for which they may defer it in all.

    Returns:
        The result that shows most clearly that something is wrong, else the slowest one.
    """
    if len(probes) == 1:
        return await probes[0].run(sample, defer)
    found = [await each.run(sample, defer / len(probes)) for each in probes]
    # a further process that does not run is being replaced: the first one serves its connections
    running = [found[0], *(each for each in found[1:] if not each.unreachable)]
    own_seconds = sum(each.own_seconds for each in found)
    return replace(worst(running), own_seconds=own_seconds)


def worst(found: Sequence[ProbeResult]) -> ProbeResult:
    """Return the worst of several results for one sample."""
    return max(found, key=_badness)


def _badness(found: ProbeResult) -> tuple[int, float]:
    grave = (
        found.unreachable,
        found.wrong is not None,
        found.fails,
        found.late,
        found.not_run is not None,
    )
    return next((len(grave) - place for place, is_so in enumerate(grave) if is_so), 0), found.cost
