"""A cache of the reference's successful results, shared by Jobs on one machine if a folder is configured.

Preflight prepares one source for several backends, whose prepare Jobs would all run the same reference.
"""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.base import canonical_json
from enginewright_contract.keys import sha256_text
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.task import SHARED_RESULTS_VARIABLE, Recipe
from pydantic_core import to_jsonable_python

from enginewright_runtime.core.children import name_of
from enginewright_runtime.core.handoff import MODEL_FOLDER, Fetched
from enginewright_runtime.core.isolated import dump_result
from enginewright_runtime.core.isolation import Call, Out, P

_RESULT: Final = "answer.json"


@dataclass(frozen=True)
class ResultKey:
    """Everything that determines a result of the reference."""

    model: Path  # as fetched: results of changed models are not shared
    recipe: Recipe  # of the Job
    about: Any  # other inputs, with digests instead of files
    files: tuple[Path, ...] = ()  # that are part of the result


def run_shared(call: Call[P, Out], key: ResultKey, *args: P.args, **kwargs: P.kwargs) -> Out:
    """Run a call as `Call.run` does, or return the result of another Job; paths are those of this Job."""
    folder = os.environ.get(SHARED_RESULTS_VARIABLE)
    model = key.model
    if not folder or (model.parent.name, model.name) != (MODEL_FOLDER, MODEL_NAME):
        return call.run(*args, **kwargs)
    place = Path(folder) / _key(name_of(call.function), key)
    place.mkdir(exist_ok=True)
    result = place / _RESULT
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other Jobs wait for the result
        if result.exists():
            for path in key.files:
                shutil.copyfile(place / path.name, path)
            return call.read(json.loads(result.read_bytes()))
        answer = call.run(*args, **kwargs)
        _store(place, key.files, dump_result(call.function, answer))
    return answer


def _key(function: str, key: ResultKey) -> str:
    work = key.model.parent.parent
    decides = {
        "function": function,
        "model": Fetched.read(work).model_digest,
        "extensions": [extension.sha256 for extension in key.recipe.extensions],
        "about": to_jsonable_python(key.about),
    }
    return sha256_text(canonical_json(decides))


def _store(
    place: Path,
    files: tuple[Path, ...],
    result: Any,  # noqa: ANN401 - any JSON value
) -> None:
    """Store a result atomically, as the Job may be killed meanwhile; if storing fails, the Job still uses its result."""
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
