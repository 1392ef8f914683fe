"""What the operator asks of the Job that collects garbage: no task may endanger what is in use."""

import json

import pytest
from enginewright_contract.collection import (
    COLLECT_STAGE,
    KEPT_CHARACTERS,
    LEAST_AGE_SECONDS,
    MOST_KEPT,
    Collected,
    CollectTask,
)
from enginewright_contract.report import (
    TERMINATION_MESSAGE_LIMIT,
    StageReport,
    read_termination_message,
)
from enginewright_contract.task import task_text, task_variables
from pydantic import ValidationError

KEY = "0123456789abcdef"
TASK = {
    "job": "collect-1",
    "keep": [KEY],
    "as_of": "2026-11-25T08:00:00Z",
    "min_age_seconds": LEAST_AGE_SECONDS,
}
MOST_OF_A_VARIABLE = 128 << 10  # bytes, MAX_ARG_STRLEN of Linux
MOST_OF_AN_OBJECT = 1 << 20  # bytes, of the 1.5 MiB that etcd takes


def test_a_task_is_read_as_it_was_written() -> None:
    task = CollectTask.model_validate(TASK)
    assert CollectTask.model_validate_json(task.to_json()) == task
    assert (task.max_age_seconds, task.max_bytes, task.dry_run) == (None, None, False)


@pytest.mark.parametrize(
    "change",
    [
        {"keep": [KEY[:-1]]},
        {"keep": [KEY + "0"]},
        {"keep": [KEY.upper()]},
        {"keep": None},
        {"keep": [KEY] * (MOST_KEPT + 1)},
        {"as_of": "2026-11-25T08:00:00"},  # of no time zone
        {"min_age_seconds": LEAST_AGE_SECONDS - 1},
        {"min_age_seconds": "NaN"},
        {"max_bytes": -1},
    ],
)
def test_task_that_could_remove_used_artefacts_is_invalid(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CollectTask.model_validate_json(json.dumps(TASK | change))


def test_task_without_the_needed_keys_is_invalid() -> None:
    with pytest.raises(ValidationError, match="keep"):
        CollectTask.model_validate({name: TASK[name] for name in TASK if name != "keep"})


def test_the_longest_task_fits_into_variables_and_an_object() -> None:
    keep = [f"{number:0{KEPT_CHARACTERS}x}" for number in range(MOST_KEPT)]
    task = CollectTask.model_validate(TASK | {"keep": keep, "job": "x" * 63})
    variables = task_variables(task.to_json())
    sizes = [len(f"{name}={part}".encode()) for name, part in variables.items()]
    assert max(sizes) < MOST_OF_A_VARIABLE
    assert sum(sizes) < MOST_OF_AN_OBJECT
    assert task_text({"HOME": "/", **variables}) == task.to_json()
    with pytest.raises(ValidationError):  # an earlier runtime image, which reads but the first
        CollectTask.model_validate_json(variables["ENGINEWRIGHT_TASK"])


def test_a_short_task_is_one_variable() -> None:
    assert task_variables("{}") == {"ENGINEWRIGHT_TASK": "{}"}
    assert task_text({"ENGINEWRIGHT_TASK": "{}", "ENGINEWRIGHT_TASK_2": "x"}) == "{}"
    assert task_text({}) == ""


def test_the_result_reaches_the_operator() -> None:
    most = (1 << 53) - 1
    numbers = {
        name: most for name, field in Collected.model_fields.items() if field.annotation is not bool
    }
    report = StageReport(
        stage=COLLECT_STAGE, ok=True, message="x" * 2000, collected=Collected(**numbers)
    )
    message = report.termination_message()
    assert len(message.encode()) <= TERMINATION_MESSAGE_LIMIT
    read = read_termination_message(message)
    assert read is not None
    assert read.collected == report.collected
