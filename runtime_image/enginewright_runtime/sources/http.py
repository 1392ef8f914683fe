"""Models behind http:// and https://."""

from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import aiohttp

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.sources.base import Entry, unreachable
from enginewright_runtime.sources.credentials import Secret
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.web import Constant, Web, shown


class HttpSource:
    """A file behind a URL; what lies beside it is at relative URLs, with the same query string."""

    pin = None  # a URL always means itself

    def __init__(self, url: str, secret: Secret) -> None:
        secret.one_of(("token",), ("username", "password"))
        self._url = url
        self._name = unquote(PurePosixPath(urlsplit(url).path).name) or "index"
        self.shown = shown(url)
        self._web = Web(
            secret,
            Constant(basic_or_bearer(secret)),
            "check the credentials in secretRef (keys token, or username and password)",
        )

    def find(self) -> str | None:
        """Return the last part of the path: a web server cannot tell a folder from a file."""
        return self._name

    def files(self, *, deep: bool) -> list[Entry]:
        """Refuse: a web server has no lists.

        Raises:
            StageFailure: always SourceUnreachable.
        """
        del deep
        raise unreachable(f"{self.shown} cannot be listed", "name the file, or an archive of them")

    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Download the file itself, or one at a relative URL."""
        return self._web.download(self._beside(path), target, quota)

    def _beside(self, path: str) -> str:
        if path == self._name:
            return self._url
        there = urlsplit(urljoin(self._url, "./" + quote(path)))
        return urlunsplit(there._replace(query=urlsplit(self._url).query))


def basic_or_bearer(secret: Secret) -> dict[str, str]:
    """Return the header that authenticates, of a token or of a user name with a password."""
    token, username, password = (secret.get(key) for key in ("token", "username", "password"))
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if username is not None and password is not None:
        return {"Authorization": aiohttp.encode_basic_auth(username, password)}
    return {}
