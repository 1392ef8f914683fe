"""The look that all panels share, so that a dashboard's module says only what it shows.

Grafana's own colour names follow the theme, and every state is told by a word as well as by a colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import (
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GOOD: Final = "green"
WARNING: Final = "orange"
BAD: Final = "red"
NEUTRAL: Final = "text"
MODEL_BOARD: Final = "enginewright-model"  # uid of the model's dashboard
_LETTERS: Final = "ABCDEFGH"  # Grafana's names of a panel's queries

_MODEL_LINK: Final = {
    "title": "This model",
    "url": f"/d/{MODEL_BOARD}?var-namespace=${{__data.fields.Namespace}}&var-model=${{__data.fields.Model}}",
}

Steps = Sequence[tuple[float | None, str]]  # (from this value on, colour); None: from the start


@dataclass(frozen=True)
class Query:
    """One PromQL query and the name of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Look:
    """Size, unit and thresholds of a panel."""

    span: int
    height: int = 8
    unit: str = "short"
    steps: Steps = ((None, NEUTRAL),)
    minimum: float | None = 0


def number(
    title: str, description: str, expr: str, look: Look, words: dict[int, str]
) -> stat.Panel:
    """Return one large value, or the word that `words` has for it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(look.span)
        .height(look.height)
        .unit(look.unit)
        .thresholds(_thresholds(look.steps))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if not words else common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("no data")
        .with_target(_target(Query(expr), "A"))
    )
    return panel.mappings([_words(words, look.steps)]) if words else panel


def graph(
    title: str, description: str, queries: Sequence[Query], look: Look, *, stacked: bool = False
) -> timeseries.Panel:
    """Return curves over time, with the last value of each in the legend."""
    legend = (
        common_builder.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(look.span)
        .height(look.height)
        .unit(look.unit)
        .thresholds(_thresholds(look.steps))
        .legend(legend)
        .tooltip(
            common_builder.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .line_width(2)
        .fill_opacity(40 if stacked else 0)
        .show_points(common.VisibilityMode.NEVER)
        .no_value("no data")
    )
    if look.minimum is not None:
        panel = panel.axis_soft_min(look.minimum)
    if stacked:
        panel = panel.stacking(
            common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        )
    if len(look.steps) > 1:
        panel = panel.thresholds_style(
            common_builder.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    for query, letter in zip(queries, _LETTERS, strict=False):
        panel = panel.with_target(_target(query, letter))
    return panel


def states(
    title: str, description: str, queries: Sequence[Query], look: Look, words: dict[int, str]
) -> statetimeline.Panel:
    """Return a band of states over time for each series; `words` names each value."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(look.span)
        .height(look.height)
        .thresholds(_thresholds(look.steps))
        .mappings([_words(words, look.steps)])
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .show_value(common.VisibilityMode.AUTO)
        .merge_values(merge_values=True)
        .row_height(0.8)
        .fill_opacity(70)
        .line_width(0)
        .no_value("no data")
    )
    for query, letter in zip(queries, _LETTERS, strict=False):
        panel = panel.with_target(_target(query, letter))
    return panel


def rows(
    title: str, description: str, expr: str, look: Look, columns: Sequence[tuple[str, str]]
) -> table.Panel:
    """Return a table of one instant query; `columns` gives labels and their headings, in order.

    A column headed Model leads to the model's dashboard.
    """
    shown = [label for label, _ in columns]
    arrange = models.DataTransformerConfig(
        id_val="organize",
        options={
            "indexByName": {label: place for place, label in enumerate(shown)},
            "renameByName": dict(columns),
        },
    )
    only = models.DataTransformerConfig(
        id_val="filterFieldsByName", options={"include": {"names": shown}}
    )
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(look.span)
        .height(look.height)
        .unit(look.unit)
        .no_value("none")
        .with_transformation(only)
        .with_transformation(arrange)
        .with_target(_target(Query(expr), "A").format(PromQueryFormat.TABLE).instant())
    )
    if "Model" not in dict(columns).values():
        return panel
    link = models.DynamicConfigValue(id_val="links", value=[_MODEL_LINK])
    return panel.override_by_name("Model", [link])


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE).range()
    return target.legend_format(query.legend) if query.legend else target


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _words(words: dict[int, str], steps: Steps) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(value): models.ValueMappingResult(
                text=word, color=_color(value, steps), index=place
            )
            for place, (value, word) in enumerate(words.items())
        }
    )


def _color(value: float, steps: Steps) -> str:
    """Return the colour of the last step that `value` reaches."""
    return [color for start, color in steps if start is None or value >= start][-1]
