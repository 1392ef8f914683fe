"""What tools that wait for a model make of it, in every state: kstatus, and Argo CD by the documented check."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from enginewright.api.crds import definitions
from lupa.lua51 import LuaRuntime

from tests.support.kstatus import BUILD_SECONDS, Computed, compute
from tests.support.plan_objects import OTHER
from tests.support.plan_world import World, conditions_of, serving
from tests.unit.test_plan_conditions import STATES

PAGE: Final = Path(__file__).parents[2] / "docs" / "rollouts.md"
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 60)


def model(world: World) -> Json:
    assert world.model
    return world.model


def of_state(obj: Json) -> str:
    """Return which of the three conditions that exclude each other is True."""
    (states,) = [
        kind
        for kind in ("Ready", "Reconciling", "Stalled")
        if conditions_of(obj)[kind][0] == "True"
    ]
    return states


def unseen_edit() -> Json:
    """Return a serving model whose spec has changed, before the operator has seen it."""
    obj = model(serving())
    obj["metadata"]["generation"] += 1
    obj["spec"] = {**obj["spec"], "source": OTHER}
    return obj


def new() -> Json:
    """Return a model that the operator has not seen, as the API server returns it."""
    (schema,) = (
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for definition in definitions().values()
        if definition["spec"]["names"]["kind"] == "InferenceModel"
    )
    return {**model(World()), "status": schema["properties"]["status"]["default"]}


def delete_object() -> Json:
    obj = model(serving())
    obj["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    return obj


@pytest.fixture(scope="module")
def objects() -> dict[str, Json]:
    return {state: model(make()) for state, make in STATES.items()}


# kstatus


@pytest.fixture(scope="module")
def computed(objects: dict[str, Json]) -> dict[str, Computed]:
    return dict(zip(objects, compute(objects.values()), strict=True))


@pytest.mark.parametrize("state", STATES)
def test_kstatus_reads_it_rightly(
    objects: dict[str, Json], computed: dict[str, Computed], state: str
) -> None:
    expected = {"Ready": "Current", "Reconciling": "InProgress", "Stalled": "Failed"}
    status = computed[state]
    assert status.sig == status.flux == expected[of_state(objects[state])]


def test_kstatus_shows_the_message_of_a_failure(computed: dict[str, Computed]) -> None:
    assert "was rejected" in computed["update, its canary crashes"].message


@pytest.mark.parametrize(
    ("obj", "expected"),
    [(unseen_edit(), "InProgress"), (delete_object(), "Terminating"), (new(), "InProgress")],
    ids=["edited", "deleted", "new"],
)
def test_kstatus_before_the_operator_has_seen_it(obj: Json, expected: str) -> None:
    (status,) = compute([obj])
    assert status.sig == status.flux == expected


# Argo CD


def health(obj: Json) -> tuple[str, str]:
    """Return status and message by the check in the document."""
    (block,) = [
        part.removeprefix("yaml\n")
        for part in PAGE.read_text().split("```")
        if "resource.customizations.health" in part
    ]
    ((name, script),) = yaml.safe_load(block)["data"].items()
    group, kind = name.removeprefix("resource.customizations.health.").split("_")
    assert obj["kind"] == kind
    assert obj["apiVersion"].startswith(f"{group}/")
    lua = LuaRuntime()
    lua.globals().obj = lua.table_from(obj, recursive=True)
    answer = lua.execute(script)
    return str(answer["status"]), str(answer["message"])


@pytest.mark.parametrize("state", STATES)
def test_argo_cd_reads_it_rightly(objects: dict[str, Json], state: str) -> None:
    obj = objects[state]
    expected = {"Ready": "Healthy", "Reconciling": "Progressing", "Stalled": "Degraded"}
    is_paused = conditions_of(obj)["Ready"] == ("False", "Suspended")
    status, message = health(obj)
    assert status == ("Suspended" if is_paused else expected[of_state(obj)])
    (ready,) = [item for item in obj["status"]["conditions"] if item["type"] == "Ready"]
    assert message == ready["message"]


@pytest.mark.parametrize("obj", [unseen_edit(), new()], ids=["edited", "new"])
def test_argo_cd_waits_for_the_operator(obj: Json) -> None:
    assert health(obj) == ("Progressing", "waiting for the operator")


def test_every_answer_occurs(objects: dict[str, Json]) -> None:
    statuses = {health(object_)[0] for object_ in objects.values()}
    assert statuses == {"Healthy", "Progressing", "Degraded", "Suspended"}
