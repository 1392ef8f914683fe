"""Manifests of pages are valid, those of the tutorial are the demo's, gallery and pictures name what is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright.api.crds import definitions
from enginewright.api.inference_model_status import TargetPhase
from enginewright_cli.plan.validation import problems
from enginewright_contract.task import ENGINE_STAGES, PREPARE_STAGES

from hack.samples.stories import refuse, rollback, serve

REPOSITORY = Path(__file__).resolve().parents[2]
KIND = "InferenceModel"


def read(page: str) -> str:
    return (REPOSITORY / "docs" / page).read_text()


def manifests(page: str) -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    documents = map(yaml.safe_load, blocks)
    return [document for document in documents if document.get("kind") == KIND]


@pytest.mark.parametrize("page", ["index.md", "tutorial.md", "migrate.md"])
def test_manifests_are_valid(page: str) -> None:
    assert [problems(manifest) for manifest in manifests(page)] == [[]] * len(manifests(page)) != []


def test_the_tutorial_is_the_demo_by_hand() -> None:
    """The demo runs these manifests and commands."""
    stories = [serve.MAGIKA, refuse.TOO_NEW, rollback.FIRST]
    assert manifests("tutorial.md") == [yaml.safe_load(story) for story in stories]
    run = "".join(Path(str(story.__file__)).read_text() for story in (serve, refuse, rollback))
    waits = re.findall(r"^kubectl wait .+", read("tutorial.md"), re.MULTILINE)
    assert [wait for wait in waits if wait not in run] == []
    assert rollback.FIRST.replace("linear-1", "linear-slow") == rollback.SLOW


def test_examples_are_there() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|c))`", read("examples.md"))
    folders = {name: "." if "/" in name else "tests/*" for name in named}
    assert [
        name for name, in_ in folders.items() if not any(REPOSITORY.glob(f"{in_}/{name}"))
    ] == []


def find_named(picture: str, kind: str) -> list[str]:
    return re.findall(rf'class="{kind}"[^>]*>([^<]+)<', read(picture))


def test_pictures_name_the_phases_kinds_and_stages() -> None:
    assert find_named("rollout.svg", "phase") == [phase.value for phase in TargetPhase]
    assert find_named("overview.svg", "stage") == [*PREPARE_STAGES, *ENGINE_STAGES]
    kinds = {definition["spec"]["names"]["kind"] for definition in definitions().values()}
    assert set(find_named("overview.svg", "kind")) == kinds
