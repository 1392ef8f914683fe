"""Reads and writes a store with the runtime's own code, as Jobs and serving pods do."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from enginewright_contract.collection import CollectTask
from enginewright_contract.manifest import LARGEST_MANIFEST, MANIFEST_NAME, Manifest
from enginewright_contract.reasons import Fault
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.store import ENGINE, PREPARED, ArtifactKind, Store, open_medium
from enginewright_runtime.store.clusters import release
from enginewright_runtime.store.collection import Collection, collect
from enginewright_runtime.store.inventory import KINDS, Inventory
from enginewright_runtime.store.medium import Listed, Medium
from pydantic import ValidationError

from enginewright_cli.formatting import count_noun
from enginewright_cli.reporting import CommandError, WrongUsage, unreadable

_FOLDERS: Final = (*(kind.folder for kind in KINDS), "reports", "caches", "tmp")  # of a volume
_OF_FILE_SYSTEM: Final = "lost+found"  # in every new volume


@dataclass(frozen=True)
class Verified:
    """The result for one artefact."""

    kind: str  # prepared | engines
    key: str
    problem: str | None  # unless it is intact


class Contents:
    """A store at a path, or in a bucket with the environment's credentials; methods raise CommandError."""

    def __init__(self, address: str) -> None:
        self._folder = None if "://" in address else Path(address)
        paths = Paths.from_environment()  # in a pod, with the Secret of its store
        if self._folder is None:
            paths = replace(paths, store_address=address)
        else:
            paths = replace(paths, store=self._folder, store_address=None)
            try:
                self._folder.stat()
            except OSError as error:
                raise unreadable(self._folder, error) from None
        with _readable():
            self._medium: Medium = open_medium(paths, by_hand=True)
        self._inventory = Inventory(self._medium)

    def list_artifacts(self) -> list[tuple[ArtifactKind, Listed]]:
        """Return the artefacts, of each kind the last used first."""
        self._refuse_other_folders()
        with _readable():
            return [
                (kind, artifact)
                for kind in KINDS
                for artifact in sorted(
                    self._inventory.artifacts(kind),
                    key=lambda item: (item.used, item.key),
                    reverse=True,
                )
            ]

    def verify(self, beginnings: Sequence[str]) -> Iterator[Verified]:
        """Verify artefacts one after the other; `beginnings`: of keys; none: all."""
        for kind, listed in self.list_artifacts():
            if beginnings and not any(listed.key.startswith(one) for one in beginnings):
                continue
            with _readable():
                yield Verified(
                    kind.folder, listed.key, _problem(Store(self._medium, kind), listed.key)
                )

    def collect(self, task: CollectTask) -> Collection:
        """Remove what nothing needs, or return what that would be."""
        self._refuse_other_folders()
        with _readable():
            return collect(self._medium, task)

    def release(self, cluster: str) -> None:
        """Forget a cluster that collected in the store."""
        self._refuse_other_folders()
        with _readable():
            if not release(self._medium, cluster):
                raise CommandError(
                    f"cluster {cluster} does not collect in this store: pass the UID that the message with"
                    " reason StoreShared names"
                )

    def export(self, beginning: str, folder: Path) -> str:
        """Copy an artefact, by the beginning of its key, verified, to a new folder; return its name."""
        if os.path.lexists(folder):
            raise WrongUsage(f"{folder} exists already: name another folder")
        kind, key = self._choose(beginning)
        with _readable(), _new(folder):
            Store(self._medium, kind).read(key, folder)
        return f"{kind.folder} {key}"

    def describe(self, beginning: str) -> Manifest:
        """Return the manifest of an artefact, by the beginning of its key."""
        kind, key = self._choose(beginning)
        with _readable():
            manifest = Store(self._medium, kind).find(key)
        if manifest is None:
            raise CommandError(f"{kind.folder} {key} was removed meanwhile; list the store again")
        return manifest

    def _choose(self, beginning: str) -> tuple[ArtifactKind, str]:
        matches = [
            (kind, listed.key)
            for kind, listed in self.list_artifacts()
            if listed.key.startswith(beginning)
        ]
        if len(matches) != 1:
            raise CommandError(
                f"the store has {count_noun(len(matches), 'artefact')} whose keys begin with {beginning!r}:"
                " give the key of one"
            )
        return matches[0]

    def publish(self, folder: Path) -> tuple[str, bool]:
        """Store the artefact in a folder; return its name, and whether the store had it already."""
        manifest = _manifest(folder)
        kind = PREPARED if manifest.engine is None else ENGINE
        with _readable():
            had_it = Store(self._medium, kind).publish_folder(manifest, folder)
        return f"{kind.folder} {manifest.key}", had_it

    def _refuse_other_folders(self) -> None:
        """Refuse a folder with other things, which is not reported as an empty store."""
        if self._folder is None or any(
            os.path.lexists(self._folder / folder) for folder in _FOLDERS
        ):
            return
        with (
            suppress(OSError),
            os.scandir(self._folder) as entries,
        ):  # the store reports what is wrong
            if any(entry.name != _OF_FILE_SYSTEM for entry in entries):
                raise WrongUsage(
                    f"{self._folder} is not the folder of a store: it has none of {', '.join(_FOLDERS)};"
                    " name the folder where the store's volume is mounted"
                )


@contextmanager
def _new(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        cause = f"cannot create {folder}: {error.strerror}"
        raise CommandError(f"{cause}; name another folder") from None
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_NAME
    remedy = "name a folder that `enginewright store export` has made"
    try:
        with open_plain(path) as reader:
            text = reader.read(LARGEST_MANIFEST + 1)
    except OSError as error:
        cause = f"{MANIFEST_NAME}: {error.strerror}"
        kind = CommandError if os.path.isdir(folder) else WrongUsage
        raise kind(f"{folder} holds no artefact: {cause}; {remedy}") from None
    if len(text) > LARGEST_MANIFEST:
        most = f"more than {LARGEST_MANIFEST >> 20} MiB"
        raise CommandError(f"{path} is not the manifest of an artefact: {most}; {remedy}")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError:
        raise CommandError(f"{path} is not the manifest of an artefact; {remedy}") from None


def find_unmatched(beginnings: Iterable[str], results: Iterable[Verified]) -> list[str]:
    """Return the beginnings of keys that no result has."""
    keys = [result.key for result in results]
    return [
        beginning for beginning in beginnings if not any(key.startswith(beginning) for key in keys)
    ]


def _problem(store: Store, key: str) -> str | None:
    try:
        manifest = store.find(key)
        if manifest is None:
            return "it was removed meanwhile"
        store.verify(manifest)
    except StageFailure as failure:
        if failure.reason.facets.fault is not Fault.ARTIFACT:
            raise
        return failure.cause
    return None


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except StageFailure as failure:
        raise CommandError(failure.message) from None
