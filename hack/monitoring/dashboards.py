"""Writes the Grafana dashboards and the Grafana-managed alerts into the chart."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from hack.monitoring import fleet, grafana_alerts, model
from hack.monitoring.panels import DATASOURCE, MODEL_BOARD, Row

FOLDER: Final = (
    Path(__file__).resolve().parents[2] / "charts/enginewright/files/monitoring/dashboards"
)
_TAG: Final = "enginewright"


def generate_files() -> dict[str, str]:
    """Return the text of every dashboard by file name."""
    return {"fleet.json": _text(_fleet()), "model.json": _text(_model())}


def _text(board: dashboard.Dashboard) -> str:
    built = board.build()
    for number, panel in enumerate(built.panels, start=1):
        panel.id_val = number  # for links to a panel
    return json.dumps(built, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _fleet() -> dashboard.Dashboard:
    board = _board("Enginewright: fleet", "enginewright-fleet", "All models and the operator.")
    _alerts(board, "")
    return _fill(board, fleet.panel_rows())


def _model() -> dashboard.Dashboard:
    board = _board("Enginewright: model", MODEL_BOARD, "One model and its pods.")
    board.with_variable(_variable("namespace", "Namespace", "enginewright_info"))
    board.with_variable(_variable("model", "Model", 'enginewright_info{namespace="$namespace"}'))
    _alerts(board, ', namespace="$namespace", model="$model"')
    return _fill(board, model.panel_rows())


def _fill(board: dashboard.Dashboard, rows: Iterable[Row]) -> dashboard.Dashboard:
    for title, panels in rows:
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


def _board(title: str, uid: str, description: str) -> dashboard.Dashboard:
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([_TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .link(
            dashboard.DashboardLink("Enginewright")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .keep_time(keep_time=True)
        )
    )


def _variable(name: str, label: str, series: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(f"label_values({series}, {name})")
        .datasource(DATASOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _alerts(board: dashboard.Dashboard, matchers: str) -> None:
    """Annotate every graph with the times at which an alert fired."""
    board.annotation(
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(enable=True)
        .icon_color("red")
        .expr(f'ALERTS{{alertname=~"Enginewright.+", alertstate="firing"{matchers}}}')
    )


def main() -> int:
    """Write the files; tests/integration/test_monitoring_dashboards.py fails where they differ."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = generate_files()
    for path in FOLDER.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text)
    grafana_alerts.FILE.write_text(grafana_alerts.make_file())
    return 0


if __name__ == "__main__":
    sys.exit(main())
