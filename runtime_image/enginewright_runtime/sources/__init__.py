"""Where models lie: one module a kind of address."""

from pathlib import Path
from urllib.parse import urlsplit

from enginewright.contract.reasons import Reason

from enginewright_runtime.failure import StageFailure
from enginewright_runtime.sources.base import Source
from enginewright_runtime.sources.claim import ClaimSource
from enginewright_runtime.sources.credentials import read_credentials

__all__ = ["Source", "open_source"]


def open_source(uri: str, mount: Path, credentials: Path) -> Source:
    """Return the source that `uri` names.

    Args:
        uri: pvc://CLAIM/PATH, http:// or https://.
        mount: where the claim of a pvc:// address is mounted.
        credentials: folder with one file a key of the Secret; it need not exist.

    Raises:
        StageFailure: SourceUnreachable, for an address that cannot be one.
    """
    parts = urlsplit(uri)
    match parts.scheme:
        case "pvc":
            return ClaimSource(mount, parts.netloc, uri.removeprefix(f"pvc://{parts.netloc}"))
        case "http" | "https" if parts.username is not None or parts.password is not None:
            raise StageFailure(
                Reason.SOURCE_UNREACHABLE,
                "the address of the source holds a user name",
                remedy="put it into the Secret in spec.source.secretRef, keys username and password",
            )
        case "http" | "https" if parts.hostname:
            from enginewright_runtime.sources.http import HttpSource  # noqa: PLC0415 - aiohttp is slow to load

            return HttpSource(uri, read_credentials(credentials))
        case _:
            raise StageFailure(
                Reason.SOURCE_UNREACHABLE,
                f"the source {uri!r} is no address that can be read",
                remedy="write pvc://CLAIM/PATH, https://HOST/PATH or http://HOST/PATH",
            )
