"""Finds out without a download that a refresh has nothing to do.

The version of fetched content is recorded in the store, with its digest: it is used only for an
address whose pinned content has that digest, and while the model prepared from it is in the store.
"""

import logging
from collections.abc import Mapping
from typing import Final

from enginewright_contract.base import Message
from enginewright_contract.keys import sha256_text
from enginewright_contract.report import Published
from enginewright_contract.task import PrepareTask
from pydantic import ValidationError

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.prepare.fetch.places import MODEL, Place, places
from enginewright_runtime.prepare.in_store import find_intact
from enginewright_runtime.sources.asker import asker, is_same_asker
from enginewright_runtime.sources.versions import RecordedSource, SourceVersion
from enginewright_runtime.store import Store, open_store

_log: Final = logging.getLogger(__name__)


class _Record(Message):
    """The version of the content of one address."""

    digest: str  # of the content, as it is pinned
    asker: str  # who fetched it
    version: SourceVersion


def find_unchanged(task: PrepareTask, paths: Paths) -> tuple[Published, str] | None:
    """Return what is in the store already, and its version for people; None: it must be fetched.

    Raises:
        StageFailure: SourceUnreachable, StoreUnavailable.
    """
    wanted = places(task, paths)
    if not wanted.keys() <= task.fetched.keys():
        return None
    store = open_store(paths)
    shown = []
    for name, place in wanted.items():
        record = _read(store, name, place)
        if record is None or record.digest != task.fetched[name]:
            return None
        if not is_same_asker(record.asker, place.credentials):
            return None
        if not record.version.is_current(place.open(), place.suffix):
            _log.info("%s has another version than %s", name, record.version.shown)
            return None
        shown.append(record.version.shown)
    data = {name: task.fetched[name] for name in wanted if name != MODEL}
    published = find_intact(task, task.fetched[MODEL], data, paths)
    return (published, ", ".join(shown)) if published else None


def record_versions(
    task: PrepareTask,
    paths: Paths,
    sources: Mapping[str, RecordedSource],
    digests: Mapping[str, str],
) -> None:
    """Record the versions of what was fetched, by name. It is not essential: a failure is logged."""
    store = open_store(paths)
    for name, place in places(task, paths).items():
        version = sources[name].version
        if not version.is_usable:
            continue
        record = _Record(digest=digests[name], asker=asker(place.credentials), version=version)
        try:
            store.put_cache(_name(name, place), record.to_json().encode())
        except StageFailure as failure:
            _log.warning("the version of the %s is not recorded: %s", name, failure.message)


def _read(store: Store, name: str, place: Place) -> _Record | None:
    content = store.get_cache(_name(name, place))
    if content is None:
        return None
    try:
        return _Record.model_validate_json(content)
    except ValidationError:  # of another release
        return None


def _name(name: str, place: Place) -> str:
    return f"source-{name}-{sha256_text(place.uri)}"
