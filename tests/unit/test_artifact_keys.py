"""Which artefacts the pods of an object read, as a collection must know."""

import json

import pytest
from enginewright.observed.artifact_keys import keys_of_pods
from enginewright_contract.task import PART_OF_TASK, task_variables

KEY = "ab" * 32


@pytest.mark.parametrize(
    "filler", [0, 2 * PART_OF_TASK], ids=["a task in one variable", "a task in several variables"]
)
def test_the_keys_in_tasks_are_found(filler: int) -> None:
    task = json.dumps({"filler": "x" * filler, "nested": [{"engine_key": KEY}], "note": "cd" * 32})
    env = [{"name": name, "value": value} for name, value in task_variables(task).items()]
    for kind in ("initContainers", "containers"):
        pod = {kind: [{"name": "other"}, {"name": "server", "env": [{"name": "HOME"}, *env]}]}
        assert keys_of_pods({"spec": {"template": {"spec": pod}}}) == {KEY}


def test_invalid_task_has_no_keys() -> None:
    env = [{"name": "ENGINEWRIGHT_TASK", "value": "{"}]
    assert keys_of_pods({"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}) == set()
    assert keys_of_pods({}) == set()
