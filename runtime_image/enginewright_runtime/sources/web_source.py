"""The base of sources whose files have URLs, with expected sizes and digests where listed."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from enginewright_contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.sources.base import ModelSource
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.web import Web


@dataclass(frozen=True)
class Located:
    """The URL of a file, and what its source lists about it."""

    url: str
    name: str | None = None  # for messages, instead of the last part of its address
    size: int | None = None  # bytes, if listed
    sha256: str | None = None  # hex, if listed


class WebSource(ModelSource):
    """Downloads files, and verifies the digests that the source lists."""

    def __init__(self, web: Web, shown: str) -> None:
        self._web = web
        self.shown = shown

    @abstractmethod
    def _locate(self, path: str) -> Located:
        """Return the location of a file; raises Missing, or StageFailure: SourceUnreachable."""

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Download a file; its version is the source's pin, else the server's version of the file."""
        located = self._locate(path)
        if located.size is not None:
            quota.check(path, located.size)
        copied = self._web.download(located.url, target, quota, name=located.name)
        if located.sha256 and located.sha256 != copied.sha256:
            raise describe_change(
                f"{(located.name or path)!r} of {self.shown}", located.sha256, copied.sha256
            )
        return Copied(
            copied.sha256, copied.size_bytes, self.pin or copied.version, copied.validator
        )


def describe_change(what: str, listed: str, arrived: str) -> StageFailure:
    """Return the failure for content whose sha256 (hex) is not the one that its source lists."""
    return StageFailure(
        Reason.DIGEST_MISMATCH,
        f"{what} arrived with sha256 {arrived}, its source lists {listed}",
        remedy="try again; if it persists, upload it again, or find the proxy that changes it",
    )
