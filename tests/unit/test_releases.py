"""What earlier releases have written is read, kept and left alone by this one."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.releases import FOLDER, keys_now, restore, worlds

CASES = [
    pytest.param(path, name, id=f"{path.stem} {name}")
    for path in sorted(FOLDER.glob("*.json"))
    for name in json.loads(path.read_text())["worlds"]
]


def read(path: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


@pytest.mark.parametrize(("path", "name"), CASES)
def test_keys_stay(path: Path, name: str) -> None:
    kept = read(path)["keys"][name]
    assert keys_now(kept) == {which: kept[which] for which in ("prepared", "engine")}


# event: Sources | another operator version, pull secrets or pull policy
@pytest.mark.parametrize(("path", "name"), CASES)
def test_an_upgrade_restarts_prepares_and_builds_nothing(path: Path, name: str) -> None:
    world = restore(read(path)["worlds"][name])
    objects, status = copy.deepcopy(world.kube.objects), copy.deepcopy(world.status)
    world.settle()
    assert world.kube.objects.keys() == objects.keys(), "no Job, no revision, no engine"
    for key, before in objects.items():
        after = world.kube.objects[key]
        assert after.get("data") == before.get("data"), key
        if key[0] in ("Job", "InferenceEngine"):
            assert after["spec"] == before["spec"], key
        if key[0] == "Deployment":
            assert after["spec"]["template"] == before["spec"]["template"], key
    assert world.status["serving"] == status["serving"]
    assert world.status["revision"] == status["revision"]
    assert world.conditions()["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(("path", "name"), CASES)
def test_returning_spec_is_the_same_revision(path: Path, name: str) -> None:
    kept = read(path)["worlds"][name]
    world = restore(copy.deepcopy(kept)).settle()
    world.edit(podTemplate={"labels": {"a": "b"}}).all_available()
    assert world.status["revision"] != kept["status"]["revision"]
    world.edit(podTemplate=kept["spec"].get("podTemplate")).all_available()
    assert world.status["revision"] == kept["status"]["revision"]


def test_this_version_is_among_them() -> None:
    assert {case.values[1] for case in CASES} == set(worlds())
