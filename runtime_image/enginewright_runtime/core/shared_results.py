"""A cache of results that Jobs on one machine share: what a source gives, whatever is to serve it.

Preflight prepares one source for several backends, and every prepare Job runs the reference on the same.
Where a folder is named, the first Job leaves its result there and the others take it; in pods none is,
and every Job runs the reference itself. Only successes are kept.
"""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.base import canonical_json
from enginewright.contract.keys import sha256_text
from enginewright.contract.manifest import MODEL_NAME
from enginewright.contract.task import SHARED_RESULTS_VARIABLE, Recipe
from pydantic_core import to_jsonable_python

from enginewright_runtime.core.children import name_of
from enginewright_runtime.core.handoff import MODEL_FOLDER, Fetched
from enginewright_runtime.core.isolation import Call, Out, P

_RESULT: Final = "answer.json"


@dataclass(frozen=True)
class ResultKey:
    """What decides a result of the reference; equal keys have one result."""

    model: Path  # as fetched: one that a Job has changed is not shared
    recipe: Recipe  # of the Job
    about: Any  # what else decides, with digests in the place of files
    files: tuple[Path, ...] = ()  # that come with the result


def run_shared(call: Call[P, Out], key: ResultKey, *args: P.args, **kwargs: P.kwargs) -> Out:
    """Run a call, as `Call.run` does, unless another Job has.

    Args:
        call: that makes the result.
        key: all that decides it.
        args: of the call, with paths of this Job.
        kwargs: likewise.

    Raises:
        StageFailure, SessionError: as `Call.run`.
    """
    folder = os.environ.get(SHARED_RESULTS_VARIABLE)
    model = key.model
    if not folder or (model.parent.name, model.name) != (MODEL_FOLDER, MODEL_NAME):
        return call.run(*args, **kwargs)
    place = Path(folder) / _key(name_of(call.function), key)
    place.mkdir(exist_ok=True)
    result = place / _RESULT
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for the result
        if result.exists():
            for path in key.files:
                shutil.copyfile(place / path.name, path)
            return call.read(json.loads(result.read_bytes()))
        found = call.run(*args, **kwargs)
        _leave(place, key.files, call.written(found))
    return found


def _key(function: str, key: ResultKey) -> str:
    work = key.model.parent.parent
    decides = {
        "function": function,
        "model": Fetched.pick_up(work).model_digest,
        "extensions": [each.sha256 for each in key.recipe.extensions],
        "about": to_jsonable_python(key.about),
    }
    return sha256_text(canonical_json(decides))


def _leave(
    place: Path,
    files: tuple[Path, ...],
    result: Any,  # noqa: ANN401 - any JSON value
) -> None:
    """Leave a result whole or not at all: a Job may be ended in the midst of it, a disk be full.

    The Job that made it has it either way.
    """
    unfinished = place / f"{_RESULT}.unfinished"
    try:
        for path in files:
            shutil.copyfile(path, place / path.name)
        unfinished.write_text(json.dumps(result))
        unfinished.rename(place / _RESULT)
    except OSError:
        for left in (unfinished, *(place / path.name for path in files)):
            with suppress(OSError):
                left.unlink()
