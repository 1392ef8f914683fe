"""Answers that Jobs on one machine have in common, found once: what a source gives, whatever is to serve it.

Preflight prepares one source for several backends, and every prepare Job asks the reference the same of
it. Where a folder is named, the first Job to ask leaves the answer there and the others take it; in pods
none is, and every Job finds out for itself. Only what went well is kept.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.base import canonical_json
from enginewright.contract.keys import sha256_text
from enginewright.contract.task import Recipe

from enginewright_runtime.core.digests import MODEL_NAME
from enginewright_runtime.core.handoff import MODEL_FOLDER, Fetched
from enginewright_runtime.core.isolation import UNLIMITED, Limits, run_isolated

VARIABLE: Final = "ENGINEWRIGHT_ANSWERS"

_ANSWER: Final = "answer.json"


@dataclass(frozen=True)
class Question:
    """What is asked of the reference; questions that are equal have one answer."""

    model: Path  # as fetched: about one that a Job has changed no other Job asks
    recipe: Recipe  # of the Job
    about: Mapping[str, Any]  # what else decides, as JSON, with digests in the place of files
    makes: tuple[Path, ...] = ()  # files that come with the answer


def ask(
    function: str,
    doing: str,
    question: Question,
    *,
    limits: Limits = UNLIMITED,
    **arguments: Any,  # noqa: ANN401 - any JSON value
) -> Any:  # noqa: ANN401 - any JSON value
    """Run `function` in a child process, as `run_isolated` does, unless another Job has.

    Args:
        function: as `run_isolated` takes it.
        doing: likewise.
        question: that the function answers.
        limits: as `run_isolated` takes it.
        arguments: likewise, with paths of this Job.

    Raises:
        StageFailure, SessionError: as `run_isolated`.
    """
    folder = os.environ.get(VARIABLE)
    model = question.model
    if not folder or (model.parent.name, model.name) != (MODEL_FOLDER, MODEL_NAME):
        return run_isolated(function, doing, limits=limits, **arguments)
    place = Path(folder) / _key(function, question)
    place.mkdir(exist_ok=True)
    answer = place / _ANSWER
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who asks meanwhile waits for the answer
        if answer.exists():
            for path in question.makes:
                shutil.copyfile(place / path.name, path)
            return json.loads(answer.read_bytes())
        found = run_isolated(function, doing, limits=limits, **arguments)
        _leave(place, question.makes, found)
    return found


def _key(function: str, question: Question) -> str:
    work = question.model.parent.parent
    decides = {
        "function": function,
        "model": Fetched.pick_up(work).model_digest,
        "extensions": [each.sha256 for each in question.recipe.extensions],
        "about": question.about,
    }
    return sha256_text(canonical_json(decides))


def _leave(
    place: Path,
    makes: tuple[Path, ...],
    answer: Any,  # noqa: ANN401 - any JSON value
) -> None:
    """Leave an answer whole or not at all: a Job may be ended in the midst of it, a disk be full.

    The Job that asked has its answer either way.
    """
    unfinished = place / f"{_ANSWER}.unfinished"
    try:
        for path in makes:
            shutil.copyfile(path, place / path.name)
        unfinished.write_text(json.dumps(answer))
        unfinished.rename(place / _ANSWER)
    except OSError:
        for left in (unfinished, *(place / path.name for path in makes)):
            with suppress(OSError):
                left.unlink()
