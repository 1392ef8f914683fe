"""Finds out without a download that a refresh has nothing to do.

The store records the version of fetched content with its digest. A record is used only for an
address whose pinned content has that digest, and while the model prepared from it is in the store and, if
the task names a pipeline, that is credited with it.
"""

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from enginewright_contract.base import Message, canonical_json
from enginewright_contract.keys import sha256_text
from enginewright_contract.report import Published
from enginewright_contract.schemes import SCHEMES
from enginewright_contract.task import PrepareTask
from pydantic import ValidationError

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.prepare.fetch.places import MODEL, Place, places
from enginewright_runtime.prepare.in_store import find_intact, find_passed
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.versions import RecordedSource, SourceVersion
from enginewright_runtime.store import open_store

_log: Final = logging.getLogger(__name__)
_SALT_BYTES: Final = 16
# settings of the pod's own identity and of endpoints
_PREFIXES: Final = tuple(prefix for scheme in SCHEMES for prefix in scheme.variable_prefixes)


class _Record(Message):
    digest: str  # of the content, as it is pinned
    asker: str  # who fetched it
    version: SourceVersion


def find_unchanged(task: PrepareTask, paths: Paths) -> tuple[Published, str] | None:
    """Return what the store already has, and its version for people, or None if it must be fetched."""
    by_name = places(task, paths)
    if not by_name.keys() <= task.fetched.keys():
        return None
    store = open_store(paths)
    shown = []
    for name, place in by_name.items():
        content = store.get_cache(_name(name, place))
        try:
            record = _Record.model_validate_json(content or b"")
        except ValidationError:  # missing, or of another release
            return None
        if record.digest != task.fetched[name]:
            return None
        salt = record.asker.partition(":")[0]
        if not hmac.compare_digest(record.asker, _identify_asker(place.credentials, salt)):
            return None
        if not record.version.is_current(place.open(), place.suffix):
            _log.info("%s has another version than %s", name, record.version.shown)
            return None
        shown.append(record.version.shown)
    data = {name: task.fetched[name] for name in by_name if name != MODEL}
    find = find_intact if task.pipeline is None else find_passed
    published = find(task, task.fetched[MODEL], data, paths)
    return (published, ", ".join(shown)) if published else None


def record_versions(
    task: PrepareTask,
    paths: Paths,
    sources: Mapping[str, RecordedSource],
    digests: Mapping[str, str],
) -> None:
    """Record the versions of fetched content, by name; a failure is only logged."""
    store = open_store(paths)
    for name, place in places(task, paths).items():
        version = sources[name].version
        if not version.is_usable:
            continue
        asker = _identify_asker(place.credentials, secrets.token_hex(_SALT_BYTES))
        record = _Record(digest=digests[name], asker=asker, version=version)
        try:
            store.put_cache(_name(name, place), record.to_json().encode())
        except StageFailure as failure:
            _log.warning("the version of the %s is not recorded: %s", name, failure.message)


def _name(name: str, place: Place) -> str:
    return f"source-{name}-{sha256_text(place.uri)}"


def _identify_asker(credentials: Path, salt: str) -> str:
    """Return an identifier of the Secret in a folder and of the pod's settings, to be recorded.

    A server may answer others with other content under the same version. Only a salted scrypt hash
    of the credentials is recorded, from which they cannot be recovered.
    """
    settings = {
        name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) and value
    }
    content = canonical_json([Secret.read(credentials).values, settings])
    digest = hashlib.scrypt(content.encode(), salt=salt.encode(), n=1 << 14, r=8, p=1).hex()
    return f"{salt}:{digest}"
