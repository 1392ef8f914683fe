"""Answers that Jobs have in common: one run for all that ask the same, and no answer to another question."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.manifest import ArtifactFile
from enginewright_contract.task import SHARED_RESULTS_VARIABLE, Extension, Recipe
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import Fetched
from enginewright_runtime.core.isolation import Call
from enginewright_runtime.core.shared_results import ResultKey, run_shared

from tests.support.placements import RECIPE


def count(*, log: Path, made: Path, say: str) -> dict[str, str]:
    """Note that it ran, and write a file. Called in a child process."""
    with log.open("a") as file:
        file.write(f"{say}\n")
    made.write_text(f"made for {say}")
    return {"said": say}


def fail(*, log: Path) -> None:
    """Note that it ran, and fail. Called in a child process."""
    with log.open("a") as file:
        file.write("failed\n")
    raise StageFailure(answers_reason(), "no answer")


def answers_reason() -> Any:
    """Return a reason that says nothing of a model."""
    from enginewright_contract.reasons import Reason  # noqa: PLC0415 - in the child alone

    return Reason.TIMEOUT


class Job:
    """The work folder of a Job that has fetched a model."""

    def __init__(self, root: Path, digest: str = "a" * 64, recipe: Recipe = RECIPE) -> None:
        self.work = root
        self.recipe = recipe
        (root / "model").mkdir(parents=True)
        self.made = root / "made.txt"
        Fetched(
            files=(ArtifactFile(path="model.onnx", sha256=digest, size_bytes=1),),
            model_digest=digest,
            samples=False,
        ).write(root)

    def run_shared(self, log: Path, say: str = "x", model: str = "model/model.onnx") -> Any:
        question = ResultKey(self.work / model, self.recipe, {"say": say}, files=(self.made,))
        return run_shared(Call(count, "counting"), question, log=log, made=self.made, say=say)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "answers"
    folder.mkdir()
    monkeypatch.setenv(SHARED_RESULTS_VARIABLE, str(folder))
    return folder


@pytest.mark.usefixtures("shared")
def test_the_second_job_takes_answer_and_files(tmp_path: Path, log: Path) -> None:
    first, second = Job(tmp_path / "1"), Job(tmp_path / "2")
    assert first.run_shared(log) == second.run_shared(log) == {"said": "x"}
    assert log.read_text() == "x\n"
    assert second.made.read_text() == "made for x"
    # what one Job does with its copy is its own
    second.made.write_text("changed")
    third = Job(tmp_path / "3")
    third.run_shared(log)
    assert (first.made.read_text(), third.made.read_text()) == ("made for x", "made for x")


@pytest.mark.usefixtures("shared")
def test_another_question_is_answered_anew(tmp_path: Path, log: Path) -> None:
    library = Extension(uri="pvc://a/b.so", sha256="b" * 64, type="CustomOperators")
    Job(tmp_path / "1").run_shared(log)
    Job(tmp_path / "2").run_shared(log, say="y")
    Job(tmp_path / "3", digest="c" * 64).run_shared(log)
    Job(tmp_path / "4", recipe=RECIPE.model_copy(update={"extensions": (library,)})).run_shared(log)
    assert log.read_text() == "x\ny\nx\nx\n"


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("model", ["converted/model.onnx", "model/convert-1.onnx"])
def test_changed_files_belong_to_the_job(tmp_path: Path, log: Path, model: str) -> None:
    for name in "12":
        Job(tmp_path / name).run_shared(log, model=model)
    assert log.read_text() == "x\nx\n"


def test_in_a_pod_nothing_is_shared(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARED_RESULTS_VARIABLE, raising=False)
    for name in "12":
        Job(tmp_path / name).run_shared(log)
    assert log.read_text() == "x\nx\n"


@pytest.mark.usefixtures("shared")
def test_concurrent_questions_wait(tmp_path: Path, log: Path) -> None:
    jobs = [Job(tmp_path / str(number)) for number in range(4)]
    said: list[Any] = []
    threads = [
        threading.Thread(target=lambda job=job: said.append(job.run_shared(log))) for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == [{"said": "x"}] * 4
    assert log.read_text() == "x\n"


@pytest.mark.usefixtures("shared")
def test_a_failure_is_each_jobs_own(tmp_path: Path, log: Path) -> None:
    for name in "12":
        question = ResultKey(Job(tmp_path / name).work / "model/model.onnx", RECIPE, {})
        with pytest.raises(StageFailure, match="no answer"):
            run_shared(Call(fail, "failing"), question, log=log)
    assert log.read_text() == "failed\nfailed\n"


def test_an_answer_that_was_not_finished_is_none(tmp_path: Path, log: Path, shared: Path) -> None:
    Job(tmp_path / "1").run_shared(log)
    (answer,) = shared.glob("*/answer.json")
    document = json.loads(answer.read_text())
    os.rename(answer, answer.with_name("answer.json.unfinished"))
    assert Job(tmp_path / "2").run_shared(log) == document
    assert log.read_text() == "x\nx\n"


def test_an_answer_that_cannot_be_left_is_still_that_of_the_job(
    tmp_path: Path, log: Path, shared: Path
) -> None:
    Job(tmp_path / "1").run_shared(log)
    (answer,) = shared.glob("*/answer.json")
    answer.unlink()
    (answer.parent / "made.txt").unlink()
    (answer.parent / "made.txt").mkdir()  # where the file is to be copied to
    assert Job(tmp_path / "2").run_shared(log) == {"said": "x"}
    assert not answer.exists()
    (answer.parent / "made.txt").rmdir()
    third = Job(tmp_path / "3")
    (answer.parent / "answer.json.unfinished").mkdir()
    assert third.run_shared(log) == {"said": "x"}
    assert third.made.read_text() == "made for x"
    assert sorted(path.name for path in answer.parent.iterdir()) == [
        "answer.json.unfinished",
        "lock",
    ]
    assert log.read_text() == "x\nx\nx\n"
