"""The dashboards: as their sources write them, and every query answered by a real Prometheus."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.monitoring import config, grafana_alerts
from hack.monitoring.dashboards import FOLDER, generate_files
from tests.e2e.harness import eventually
from tests.support.expositions import OperatorPod, ServingPod
from tests.support.monitoring import (
    RULES,
    BoardQuery,
    Pods,
    Stack,
    board_queries,
    running,
)

BOARDS = ("fleet.json", "model.json")
QUERIES = [(name, board_query) for name in BOARDS for board_query in board_queries(name)]


def panels(name: str) -> list[dict[str, Any]]:
    board = json.loads((FOLDER / name).read_text())
    return [item for item in board["panels"] if item["type"] != "row"]


def test_the_files_are_as_their_sources_write_them() -> None:
    shipped = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert generate_files() == shipped, "run make dashboards"
    assert grafana_alerts.FILE.read_text() == grafana_alerts.make_file(), "run make dashboards"


def test_grafanas_rules_are_those_of_prometheus() -> None:
    """Expressions, labels and delays are equal; Grafana would replace a `$` of what it interpolates."""
    made = yaml.safe_load(grafana_alerts.FILE.read_text())
    rules = {rule["uid"]: rule for group in made["groups"] for rule in group["rules"]}
    theirs = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert list(rules) == [rule["alert"].lower() for rule in theirs]
    for rule, ours in zip(theirs, rules.values(), strict=True):
        query, condition = ours["data"]
        assert (ours["title"], query["model"]["expr"]) == (rule["alert"], rule["expr"])
        assert (query["model"]["instant"], query["refId"]) == (
            True,
            condition["model"]["expression"],
        )
        assert (ours["labels"], ours["for"]) == (rule["labels"], rule.get("for", "0s"))
        assert ours["annotations"].keys() == rule["annotations"].keys()
        assert (ours["condition"], condition["datasourceUid"]) == (condition["refId"], "__expr__")
        assert "$" not in json.dumps([ours["annotations"], ours["labels"]])
        assert len(ours["uid"]) <= 40
        assert not {"folderUID", "orgID", "ruleGroup"} & ours.keys()


@pytest.mark.parametrize("name", BOARDS)
def test_panels_explain_themselves_and_lie_beside_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert max(column for column, _ in cells) < 24
        taken |= cells
    titles = [panel["title"] for panel in panels(name)]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", BOARDS)
def test_colours_follow_the_theme(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.findall(r'"color": "(?:#|rgb)[^"]*"', text)


def test_rules_and_dashboards_use_no_metric_that_is_not_exposed() -> None:
    wrong = ServingPod()  # some series exist only while something is wrong
    wrong.fallen_back = wrong.runs_fail = True
    exposed = (wrong.expose() + OperatorPod().expose()).decode()
    names = set(re.findall(r"^(\w+)", exposed, flags=re.MULTILINE))
    text = RULES.read_text() + "".join(query.expr for _, query in QUERIES)
    used = set(
        re.findall(
            r"\b(enginewright_\w+|controller_runtime_\w+|workqueue_\w+|rest_client_\w+)", text
        )
    )
    assert used - names == set()
    ours = {name for name in names if name.startswith("enginewright_")}
    parts = {name for name in ours if name.endswith(("_sum", "_count", "_created"))}
    assert ours - used - parts == set(), "nothing shows these"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prometheus with a model that has fallen back, scraped often enough for a rate."""
    folder = tmp_path_factory.mktemp("prometheus")
    chart = config.chart_objects()
    with Pods.start() as pods:
        pods.serving.fallen_back = True
        with running(folder, pods.scrape_configs(chart), 0.25) as running_stack:
            for job in ("sidecar", "operator"):
                samples = f'count_over_time(up{{job="enginewright-{job}"}}[1m]) > 3'
                eventually(lambda: running_stack.query(samples), 30, samples, interval=0.1)  # noqa: B023 - called at once
            firing = 'ALERTS{alertstate="firing"}'
            eventually(lambda: running_stack.query(firing), 30, firing, interval=0.1)
            yield running_stack


@pytest.mark.parametrize(
    ("board", "query"), QUERIES, ids=[f"{name} {query.place}" for name, query in QUERIES]
)
def test_every_query_returns_data(stack: Stack, board: str, query: BoardQuery) -> None:
    text = query.fill_in(rate_interval="5s", namespace="shop", model="rank")
    what = (
        f"{board}, {query.place}: data for {text}"  # a scrape may take too long on a busy machine
    )
    series = eventually(lambda: stack.query(text), 30, what, interval=0.2)
    values = {entry["value"][1] for entry in series}
    assert "NaN" not in values, f"{board}, {query.place}: {text} is {values}"


def test_variables_offer_existing_values(stack: Stack) -> None:
    (namespaces,) = [query for _, query in QUERIES if query.place == "variable namespace"]
    assert [entry["metric"] for entry in stack.query(namespaces.expr)] == [{"namespace": "shop"}]


def test_a_selected_model_is_the_only_one_shown(stack: Stack) -> None:
    for query in board_queries("model.json"):
        if not query.place.startswith("variable"):
            text = query.fill_in(rate_interval="5s", namespace="shop", model="another")
            assert stack.query(text) == [], query.place
