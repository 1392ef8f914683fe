"""Builders of panels in a common style, so that a dashboard's module has only its content.

Grafana's named colors follow the theme, and every state has a text as well as a color.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

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
SLOW: Final = ((None, GOOD), (2.2, BAD))  # of a latency ratio: the limit of the sidecar's check
MODEL_BOARD: Final = "enginewright-model"  # uid of the model's dashboard
_LETTERS: Final = "ABCDEFGH"  # ref ids of a panel's queries

_MODEL_LINK: Final = {
    "title": "This model",
    "url": f"/d/{MODEL_BOARD}?var-namespace=${{__data.fields.Namespace}}&var-model=${{__data.fields.Model}}",
}

Panel = TypeVar("Panel", stat.Panel, timeseries.Panel, statetimeline.Panel, table.Panel)
Row = tuple[str, Sequence[stat.Panel | timeseries.Panel | statetimeline.Panel | table.Panel]]
Steps = Sequence[tuple[float | None, str]]  # (from this value on, or from the start, color)


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
    title: str, description: str, expr: str, look: Look, labels: Mapping[int, str] | None = None
) -> stat.Panel:
    """Return a panel with one large value, or its text in `labels`."""
    panel = (
        _common(stat.Panel(), title, description, look)
        .unit(look.unit)
        .thresholds(_thresholds(look.steps))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if not labels else common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("no data")
        .with_target(_target(Query(expr), "A"))
    )
    return panel.mappings([_value_mapping(labels, look.steps)]) if labels else panel


def graph(
    title: str, description: str, look: Look, *queries: Query, stacked: bool = False
) -> timeseries.Panel:
    """Return a panel with curves over time, and their last and highest values in the legend."""
    legend = (
        common_builder.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    panel = (
        _common(timeseries.Panel(), title, description, look)
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
    title: str, description: str, look: Look, labels: Mapping[int, str], *queries: Query
) -> statetimeline.Panel:
    """Return a panel with a band of states over time for each series; `labels` maps its values."""
    panel = (
        _common(statetimeline.Panel(), title, description, look)
        .thresholds(_thresholds(look.steps))
        .mappings([_value_mapping(labels, look.steps)])
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
    """Return a table of one instant query; `columns` are labels and their headings, in order.

    A column with the heading Model links to the model's dashboard.
    """
    shown = [label for label, _ in columns]
    arrange = models.DataTransformerConfig(
        id_val="organize",
        options={
            "indexByName": {label: index for index, label in enumerate(shown)},
            "renameByName": dict(columns),
        },
    )
    only = models.DataTransformerConfig(
        id_val="filterFieldsByName", options={"include": {"names": shown}}
    )
    panel = (
        _common(table.Panel(), title, description, look)
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


def quantiles(rate_of_buckets: str, named: Mapping[str, float]) -> list[Query]:
    """Return a curve for each of the named quantiles of a histogram."""
    return [
        Query(f"histogram_quantile({quantile}, sum by (le) ({rate_of_buckets}))", name)
        for name, quantile in named.items()
    ]


def _common(panel: Panel, title: str, description: str, look: Look) -> Panel:
    return (
        panel.title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(look.span)
        .height(look.height)
    )


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE).range()
    return target.legend_format(query.legend) if query.legend else target


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _value_mapping(labels: Mapping[int, str], steps: Steps) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(value): models.ValueMappingResult(
                text=text, color=_color(value, steps), index=index
            )
            for index, (value, text) in enumerate(labels.items())
        }
    )


def _color(value: float, steps: Steps) -> str:
    """Return the color of the last step that `value` reaches."""
    return [color for start, color in steps if start is None or value >= start][-1]
