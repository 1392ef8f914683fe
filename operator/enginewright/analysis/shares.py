"""Whether a share of the new revision's responses exceeds that of the serving one, at any number of looks.

The evidence is an e-value, the likelihood of the new revision's counts averaged over all shares, divided
by that of the largest share that is allowed. Its chance of ever exceeding 1/a is at most a, however
often it is looked at (Ville's inequality; Ramdas, Gruenwald, Vovk and Shafer, Statistical Science 38,
2023), so counts without a history suffice. It is exact for any count: five of five are enough, one of
200 is not. Fewer than five never are, because clients retry a failed request. The serving revision's share
is taken at the upper end of its 95% interval, so that nothing fails against a revision with hardly any
responses (Wilson, Journal of the American Statistical Association 22, 1927).

While pods start and end, an excess must show in the sums and also period by period, where the same pods have
counted: sums alone weigh an incident of both revisions by how many of the present pods have lived through it,
and periods alone can put it into different ones, as counts of the past are kept for few moments. The upper
end of the serving revision's share is far above it after few responses, so neighbouring periods are joined
until they have enough of them, unless its shares differ: then there was an incident in one of them.

Requests that the server did not run, because it was busy, stopping or not ready, say nothing about the model.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lgamma, log, log1p, sqrt
from typing import Final, TypeAlias

from enginewright_contract.measurements import Counts, Measurements
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.status_codes import select_errors, select_run

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure, State
from enginewright.analysis.window import count_in_periods, count_since, periods_of

MAX_REJECTED: Final = 0.2  # by which the share of 4xx may exceed that of the serving revision
_FALSE_FAILURES: Final = 0.003  # probability over all looks, of each of the shares
_LEAST: Final = 5  # of the new revision
_LONG: Final = 2000  # responses of the serving revision after which a period is not joined
_QUANTILE: Final = 1.645  # 95%, one-sided
_ShareOf: TypeAlias = "Callable[[Iterable[Counts]], Share]"


@dataclass(frozen=True)
class Share:
    """`part` of `whole` responses."""

    part: int
    whole: int

    @property
    def value(self) -> float | None:
        """Return the share, if there are responses."""
        return self.part / self.whole if self.whole else None

    @property
    def upper(self) -> float:
        """Return the end of its interval by Wilson's score."""
        if not self.whole:
            return 1.0
        z2, p = _QUANTILE**2, self.part / self.whole
        spread = _QUANTILE * sqrt(p * (1 - p) * self.whole + z2 / 4)
        return min(1.0, (self.part + z2 / 2 + spread) / (self.whole + z2))


def join_periods(periods: Sequence[tuple[Share, Share]]) -> list[tuple[Share, Share]]:
    """Join neighbouring periods of both revisions where the serving one has few responses and similar shares."""
    together: list[tuple[Share, Share]] = []
    for stable, canary in periods:
        if together and together[-1][0].whole < _LONG and _is_similar(together[-1][0], stable):
            theirs, ours = together.pop()
            together.append((_sum(theirs, stable), _sum(ours, canary)))
        else:
            together.append((stable, canary))
    return together


def _sum(one: Share, other: Share) -> Share:
    return Share(one.part + other.part, one.whole + other.whole)


def _is_similar(one: Share, other: Share) -> bool:
    """Return whether none of the shares is above the other one's interval."""
    return (one.value or 0.0) <= other.upper and (other.value or 0.0) <= one.upper


def exceeds(periods: Sequence[tuple[Share, Share]], excess: float) -> bool:
    """Return whether the new revision's share exceeds the serving one's by more than `excess`.

    In each of the `periods`, of the serving and the new revision, it may have any share up to the allowed one.
    """
    allowed = [(min(1.0, stable.upper + excess), canary) for stable, canary in periods]
    limited = [(most, canary) for most, canary in allowed if most < 1 and canary.whole]
    part = sum(canary.part for _, canary in limited)
    rest = sum(canary.whole for _, canary in limited) - part
    if part < max(_LEAST, sum(most * canary.whole for most, canary in limited)):
        return False
    averaged = lgamma(part + 1) + lgamma(rest + 1) - lgamma(part + rest + 2)
    largest = sum(_log_likelihood(canary, most) for most, canary in limited)
    return averaged - largest > -log(_FALSE_FAILURES)


def _log_likelihood(observed: Share, most: float) -> float:
    """Return the largest logarithm of the likelihood of a share of at most `most`, below 1."""
    share = min(most, observed.part / observed.whole)
    rest = observed.whole - observed.part
    return (observed.part * log(share) if observed.part else 0.0) + rest * log1p(-share)


def compare_shares(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare errors, rejected requests and golden inferences since both revisions have a pod."""
    begins = periods_of(stable, canary)
    start = begins[0]
    arms = [[count_since(pod, start) for pod in pods] for pods in (stable, canary)]
    periods = [_by_period(pods, begins) for pods in (stable, canary)]
    figures: list[Figure] = []
    findings: list[Finding] = []
    for name, reason, excess, share in (
        (
            "5xx responses",
            Reason.TOO_MANY_ERRORS,
            limits.max_error_share,
            _responses(select_errors),
        ),
        ("4xx responses", Reason.REQUESTS_REJECTED, MAX_REJECTED, _responses(_select_rejected)),
        (
            "failed golden inferences",
            Reason.TOO_MANY_ERRORS,
            limits.max_error_share,
            _golden_failed,
        ),
        ("wrong golden inferences", Reason.PARITY_FAILED, 0.0, _golden_wrong),
    ):
        theirs, ours = map(share, arms)
        # one wrong golden inference is one too many, unless the serving revision has them too
        wrong = reason is Reason.PARITY_FAILED and ours.part > 0 and theirs.part == 0
        by_period = [(share(one), share(other)) for one, other in zip(*periods, strict=True)]
        failed = wrong or (
            exceeds([(theirs, ours)], excess) and exceeds(join_periods(by_period), excess)
        )
        figures.append(share_figure(name, theirs, ours, excess, "failed" if failed else "passed"))
        if failed:
            cause = f"{name}: {_of(ours)} of the new revision, {_of(theirs)} of the serving one"
            findings.append(Finding(reason=reason, cause=cause))
    theirs, ours = map(_not_run, arms)
    figures.append(share_figure("503 and 504 responses", theirs, ours, None, "passed"))
    return AnalysisResult(
        "failed" if findings else "passed", tuple(findings), figures=tuple(figures)
    )


def _by_period(pods: Sequence[Measurements], begins: Sequence[float]) -> list[tuple[Counts, ...]]:
    counts = [count_in_periods(pod, begins) for pod in pods]
    return list(zip(*counts, strict=True)) if counts else [()] * len(begins)


def _responses(select: Callable[[Mapping[int, int]], Mapping[int, int]]) -> _ShareOf:
    def share(pods: Iterable[Counts]) -> Share:
        codes = _codes(pods)
        return Share(sum(select(codes).values()), sum(select_run(codes).values()))

    return share


def _select_rejected(responses: Mapping[int, int]) -> dict[int, int]:
    return {code: count for code, count in responses.items() if 400 <= code < 500}


def _not_run(pods: Iterable[Counts]) -> Share:
    codes = _codes(pods)
    total = sum(codes.values())
    return Share(total - sum(select_run(codes).values()), total)


def _codes(pods: Iterable[Counts]) -> Counter[int]:
    codes: Counter[int] = Counter()
    for pod in pods:
        codes.update({int(code): count for code, count in pod.responses.items()})
    return codes


def _golden_failed(pods: Sequence[Counts]) -> Share:
    failed = sum(pod.golden_failed for pod in pods)
    return Share(failed, failed + sum(pod.golden_ok + pod.golden_wrong for pod in pods))


def _golden_wrong(pods: Sequence[Counts]) -> Share:
    wrong = sum(pod.golden_wrong for pod in pods)
    return Share(wrong, wrong + sum(pod.golden_ok for pod in pods))


def share_figure(
    name: str, stable: Share, canary: Share, limit: float | None, state: State
) -> Figure:
    """Return the comparison of two shares, with the limit of the excess if there is one."""
    return Figure(
        name=name,
        unit="share",
        stable=stable.value,
        canary=canary.value,
        ratio=None,
        limit=limit,
        stable_samples=stable.whole,
        canary_samples=canary.whole,
        state=state,
    )


def _of(share: Share) -> str:
    return f"{share.part} of {share.whole}"
