"""The results as Markdown, for the terminal and docs/reference/truth.md."""

from collections.abc import Sequence

import numpy as np

from bench.truth import targets
from bench.truth.comparators import OURS, PRECISIONS
from bench.truth.lies import ALL
from bench.truth.results import SIZES, CaseResult, Results
from hack.tables.markdown import table


def conditions(results: Results) -> str:
    """Return what the figures depend on, as one sentence."""
    about = results.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    honest = sum(model.honest for model in results.models)
    lies = sum(model.lies for model in results.models)
    return (
        f"Measured {about['date']}: {len(results.models)} real models of"
        f" {len({model.kind for model in results.models})} kinds, {lies:,} lies, {honest} honest"
        f" artefacts; {versions}."
    )


def power(results: Results) -> str:
    """Return the table of comparators: lies found, by size, and honest artefacts that fail."""
    rows = []
    for comparator in results.comparators():
        for precision in PRECISIONS:
            alarms = results.alarms_of(comparator, precision)
            if alarms is None:
                continue
            detected = [results.count(comparator, precision, size) for size in SIZES]
            tolerance = "" if alarms.tolerance == 1 else f" (x{alarms.tolerance:,.3g})"
            rows.append(
                (
                    f"{comparator}{tolerance}",
                    precision,
                    *(_share(item.detected, item.told, item.unknown) for item in detected),
                    f"{alarms.alarms} of {alarms.honest}",
                )
            )
    return table(("comparator", "precision", *SIZES, "false alarms"), rows)


def kinds(results: Results) -> str:
    """Return the table of kinds of lies that we find, of all sizes."""
    rows = []
    for kind in ALL:
        cells = []
        for precision in PRECISIONS:
            own = [
                row
                for row in results.lies
                if (row.comparator, row.precision, row.kind) == (OURS, precision, kind)
            ]
            cells.append(
                _share(
                    sum(row.detected for row in own),
                    sum(row.told for row in own),
                    sum(row.unknown for row in own),
                )
            )
        if any(cells):
            rows.append((kind, *cells))
    return table(("lie", *PRECISIONS), rows)


def models(results: Results) -> str:
    """Return the table of models."""
    return table(
        ("model", "kind", "samples", "lies", "honest artefacts", "dishonest", "refused"),
        [
            (
                model.file,
                model.kind,
                str(model.samples),
                str(model.lies),
                str(model.honest),
                str(len(model.dishonest)),
                str(len(model.refused)),
            )
            for model in results.models
        ],
    )


def outcomes(results: Results) -> str:
    """Return the table of targets."""
    return table(
        ("what", "target", "measured", "result"),
        [
            (item.what, item.bound, item.measured, "pass" if item.kept else "miss")
            for item in targets.judge(results)
        ],
    )


def text(results: Results) -> str:
    """Return all of it, for the terminal."""
    failing = [f"FALSE ALARM {name}: {outputs}" for name, outputs in results.false_alarms.items()]
    left_out = [
        f"LEFT OUT {model.name}, {name}: {why if isinstance(why, str) else f'{why:.1%} of its results'}"
        for model in results.models
        for name, why in (model.dishonest | model.refused).items()
    ]
    parts = (power, kinds, models, outcomes, conditions)
    return "\n\n".join([*left_out, *failing, *(part(results) for part in parts)])


def constants(cases: Sequence[CaseResult]) -> str:
    """Return how the errors of honest artefacts lie, and what other constants of the rule on parts would say."""
    rows = []
    for case in cases:
        for precision in PRECISIONS:
            own = [
                item
                for row in case.variants
                if row.honest and row.precision == precision
                for item in row.spreads
            ]
            for output, axis in dict.fromkeys((item.output, item.axis) for item in own):
                same = [item for item in own if (item.output, item.axis) == (output, axis)]
                errors = np.max([item.errors for item in same], axis=0)
                rounding = np.max([item.rounding for item in same], axis=0)
                rows.append(
                    (
                        case.name,
                        precision,
                        f"{output[:16]}, {axis}",
                        f"{same[0].moving} of {same[0].of}",
                        " ".join(f"{value:.2g}" for value in errors),
                        " ".join(f"{value:.2g}" for value in rounding),
                    )
                )
    heading = ("model", "precision", "output, axis", "moving", "worst r/s 50 90 99 100%", "e/s")
    return "\n\n".join(
        [
            table(heading, rows),
            _list_figures(cases),
            *(_sweep(cases, precision) for precision in PRECISIONS),
        ]
    )


def _list_figures(cases: Sequence[CaseResult]) -> str:
    """Return by which figure of the whole lies are detected, and honest artefacts fail, that their parts do not."""
    rows = []
    for precision in PRECISIONS:
        said = [item.verdicts[precision] for case in cases for item in case.lies]
        honest = [
            verdict
            for case in cases
            for row in case.variants
            if row.precision == precision
            for verdict in row.verdicts.values()
        ]
        for figure in sorted({verdict[2] for verdict in (*said, *honest) if verdict[2]}):
            alone = [
                sum(verdict[2] == figure and verdict[1] != "fails" for verdict in verdicts)
                for verdicts in (said, honest)
            ]
            rows.append((precision, figure, *map(str, alone)))
    return table(
        ("precision", "figure", "lies that only it detects", "false alarms only by it"), rows
    )


def _sweep(cases: Sequence[CaseResult], precision: str) -> str:
    honest = [
        row
        for case in cases
        for row in case.variants
        if row.honest and row.precision == precision and row.parts
    ]
    if not honest:
        return ""
    total = sum(row.parts for row in honest)
    rows = []
    for index, tried in enumerate(honest[0].constants):
        same = [row.constants[index] for row in honest]
        # by artefact, so that an axis of thousands does not rule
        shares = [item.unknown / row.parts for item, row in zip(same, honest, strict=True)]
        detected = _find_lies(cases, precision, tried.share, tried.ratio)
        rows.append(
            (
                f"{tried.share:g}",
                f"{tried.ratio:g}",
                str(sum(item.fails for item in same)),
                f"{sum(item.unknown for item in same) / total:.1%}",
                f"{np.mean(shares):.1%}",
                *detected,
            )
        )
    heading = (
        *(
            f"{precision}, {len(honest)} honest: T",
            "k",
            "false alarms",
            "unknown",
            "mean by artefact",
        ),
        *("found, of 20%", "of 50%"),
    )
    return table(heading, rows)


def _find_lies(
    cases: Sequence[CaseResult], precision: str, share: float, ratio: float
) -> tuple[str, ...]:
    """Return the share of lies about parts that the part's own error gives away, of two sizes and more."""
    told = [item for case in cases for item in case.lies if item.rounding]
    cells = []
    for least in (0.2, 0.5):
        own = [item for item in told if least <= item.lie.size < np.inf]
        detected = [
            item.lie.size > max(share, ratio * item.rounding.get(precision, np.inf)) for item in own
        ]
        cells.append(f"{np.mean(detected):.1%}" if detected else "")
    return tuple(cells)


def _share(detected: int, told: int, unknown: int) -> str:
    if not told:
        return ""
    return f"{detected / told:.1%}" + (f" ({unknown / told:.1%} unknown)" if unknown else "")
