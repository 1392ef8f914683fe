"""What `spec.serving` says of the server is in the revision, by its name, and in the task of its pods."""

import json
from typing import Any, Final

import pytest
from enginewright.api.serving import Serving
from enginewright.manifests.pod_options import PodOptions
from enginewright.manifests.snapshot import Revision
from enginewright_contract.serving_options import ServingOptions
from enginewright_contract.task import TASK_VARIABLE, ServeTask

from tests.support.plan_world import World
from tests.support.releases import FOLDER

# for every option, what another value than the default is asked for with
ASKED: Final[dict[str, dict[str, Any]]] = {
    "max_queue": {"maxQueue": 7},
    "batch_size": {"batching": {"maxSize": 8}},
    "batch_delay_seconds": {"batching": {"maxDelay": "5ms"}},
    "batch_padding": {"batching": {"padding": {"input_ids": 0, "attention_mask": 1}}},
    "concurrent_runs": {"maxConcurrentRuns": 2},
    "request_seconds": {"requestTimeout": "10s"},
    "access_log": {"accessLog": {"sample": "2%"}},
    "tracing": {"tracing": {"sample": "5%"}},
    "embeddings": {"embeddings": {"pooling": "CLS", "normalize": False, "output": "states"}},
}


def test_every_option_can_be_asked_for() -> None:
    assert ASKED.keys() == ServingOptions.model_fields.keys()


@pytest.mark.parametrize("option", ASKED)
def test_an_asked_option_is_in_the_revision_and_in_every_containers_task(option: str) -> None:
    asked = getattr(Serving.model_validate(ASKED[option]).options(), option)
    default = getattr(ServingOptions(), option)
    assert asked != default
    plain, world = (
        World(**spec).settle().job_succeeds() for spec in ({}, {"serving": ASKED[option]})
    )
    assert world.status["revision"] != plain.status["revision"]
    snapshot = Revision.read(world.the("ControllerRevision")).snapshot
    pod = world.the("Deployment")["spec"]["template"]["spec"]
    tasks = [
        ServeTask.model_validate_json(one["value"])
        for item in (*pod["initContainers"], *pod["containers"])
        for one in item["env"]
        if one["name"] == TASK_VARIABLE
    ]
    assert len(tasks) == 3
    for options in (snapshot, *tasks):
        assert options.options() == {**ServingOptions().options(), option: asked}


def test_the_length_of_the_queue_is_in_the_name_of_every_revision() -> None:
    assert PodOptions.model_fields["max_queue"].is_required()


@pytest.mark.parametrize("world", ["plain", "rich", "engine"])
def test_a_task_is_written_in_the_order_of_earlier_releases(world: str) -> None:
    """A template that is rendered again, as after a restoration from a backup, restarts no pods for it."""
    kept = json.loads((FOLDER / "0.1.0.json").read_text())["worlds"][world]["objects"]
    (template,) = [item["spec"]["template"] for item in kept if item["kind"] == "Deployment"]
    (text,) = [
        one["value"]
        for one in template["spec"]["containers"][0]["env"]
        if one["name"] == TASK_VARIABLE
    ]
    fields = json.loads(text)
    written = json.loads(ServeTask.model_validate_json(text).to_json())
    assert [name for name in written if name in fields] == list(fields)
