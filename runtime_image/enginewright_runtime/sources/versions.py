"""Whether an address still has the content that was fetched from it, by requests for metadata alone.

Servers state versions: a commit, the digest of a manifest, ETags, dates. They are recorded while the content is
fetched, because only then are they those of the fetched bytes.
"""

from collections.abc import Iterable
from pathlib import Path

from enginewright_contract.base import Message, canonical_json
from enginewright_contract.keys import sha256_text
from enginewright_contract.report import name_nodes
from typing_extensions import override

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.sources.base import Entry, ModelSource
from enginewright_runtime.sources.quota import DiskQuota


class FileVersion(Message):
    """The version of one file."""

    path: str  # as of `ModelSource.copy`
    validator: str | None = None  # if the server states a reliable one


class ListingVersion(Message):
    """The versions of the files of a folder, from which the fetched ones were chosen."""

    deep: bool
    digest: str | None = None  # sha256 over their names and validators, if all have one


class SourceVersion(Message):
    """The version of everything that was fetched from one address."""

    name: str | None = None  # of the file at the address, unless it is a folder
    pin: str | None = None
    files: tuple[FileVersion, ...] = ()  # that no listing has
    listings: tuple[ListingVersion, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Return whether a later look at the address can find it unchanged."""
        return self.pin is not None or self._is_complete

    @property
    def shown(self) -> str:
        """Return it for users, such as etag "1"."""
        files = [file.validator for file in self.files if file.validator]
        listings = [f"listing {listing.digest[:12]}" for listing in self.listings if listing.digest]
        return self.pin or name_nodes([*listings, *files])

    @property
    def _is_complete(self) -> bool:
        return all(file.validator for file in self.files) and all(
            listing.digest for listing in self.listings
        )

    def is_current(self, source: ModelSource, suffix: str) -> bool:
        """Return whether the address has the same content now, as far as its server's versions tell.

        Nothing of `source` was read yet; `suffix` is as of `RecordedSource`. Raises StageFailure: SourceUnreachable.
        """
        if self.pin is not None and source.current_pin() == self.pin:
            return True
        if not self._is_complete or source.find() != self.name:
            return False
        for listing in self.listings:
            if _digest(_choose(source.files(deep=listing.deep), suffix)) != listing.digest:
                return False
        return all(source.head(file.path) == file.validator for file in self.files)


class RecordedSource(ModelSource):
    """A source that records the versions of what is fetched: of a folder, files with the `suffix` decide."""

    def __init__(self, source: ModelSource, suffix: str) -> None:
        self._source = source
        self._suffix = suffix
        self._name: str | None = None
        self._copied: dict[str, str | None] = {}
        self._listed: dict[bool, list[Entry]] = {}
        self.shown = source.shown

    @property
    @override
    def pin(self) -> str | None:
        return self._source.pin

    @property
    def version(self) -> SourceVersion:
        """Return the version of what has been fetched."""
        validators = {
            entry.path: entry.validator for entries in self._listed.values() for entry in entries
        }
        # a file that was replaced after it was listed is not the listed one
        replaced = any(
            path in validators and validators[path] != copied
            for path, copied in self._copied.items()
        )
        return SourceVersion(
            name=self._name,
            pin=self.pin,
            files=tuple(
                FileVersion(path=path, validator=validator)
                for path, validator in self._copied.items()
                if path not in validators
            ),
            listings=tuple(
                ListingVersion(deep=deep, digest=None if replaced else _digest(entries))
                for deep, entries in self._listed.items()
            ),
        )

    @override
    def find(self) -> str | None:
        self._name = self._source.find()
        return self._name

    @override
    def files(self, *, deep: bool) -> list[Entry]:
        entries = self._source.files(deep=deep)
        self._listed[deep] = _choose(entries, self._suffix)
        return entries

    @override
    def _entries(self, *, deep: bool) -> Iterable[Entry]:
        return self._source.files(deep=deep)

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        copied = self._source.copy(path, target, quota)
        self._copied[path] = copied.validator
        return copied


def _choose(entries: Iterable[Entry], suffix: str) -> list[Entry]:
    return [entry for entry in entries if entry.path.lower().endswith(suffix)]


def _digest(entries: Iterable[Entry]) -> str | None:
    versions = [[entry.path, entry.validator] for entry in entries]
    if not all(validator for _, validator in versions):
        return None
    return sha256_text(canonical_json(versions))
