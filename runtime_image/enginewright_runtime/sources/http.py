"""Models behind http:// and https://."""

from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import aiohttp
from enginewright_contract.schemes import HTTPS
from typing_extensions import override

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.peers import Peers
from enginewright_runtime.sources.base import Entry
from enginewright_runtime.sources.web import Constant, Web, show_url
from enginewright_runtime.sources.web_source import Located, WebSource


class HttpSource(WebSource):
    """A file at a URL; its sibling files are at relative URLs with the same query string."""

    def __init__(self, url: str, secret: Secret) -> None:
        if "@" in urlsplit(url).netloc:
            raise unreachable(
                "the address of the source contains a user name",
                "put it into the Secret in spec.source.secretRef, keys username and password",
            )
        secret.one_of(("token",), ("username", "password"))
        self._url = url
        self._name = unquote(PurePosixPath(urlsplit(url).path).name) or "index"
        remedy = f"check the credentials in secretRef (keys {HTTPS.keys})"
        super().__init__(
            Web(secret, Constant(basic_or_bearer(secret)), remedy, Peers()), show_url(url)
        )

    @override
    def find(self) -> str | None:
        """Return the last part of the path: HTTP does not tell folders from files."""
        return self._name

    @override
    def head(self, path: str) -> str | None:
        answer = self._web.head(self._locate(path).url)
        return answer.validator if answer else None

    @override
    def _entries(self, *, deep: bool) -> list[Entry]:
        del deep
        raise unreachable(f"{self.shown} cannot be listed", "name the file, or an archive of them")

    @override
    def _locate(self, path: str) -> Located:
        if path == self._name:
            return Located(self._url)
        sibling = urlsplit(urljoin(self._url, "./" + quote(path)))
        return Located(urlunsplit(sibling._replace(query=urlsplit(self._url).query)))


def basic_or_bearer(secret: Secret) -> dict[str, str]:
    """Return the Authorization header for a token, or for a user name and password."""
    token, username, password = (secret.get(key) for key in ("token", "username", "password"))
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if username is not None and password is not None:
        return {"Authorization": aiohttp.encode_basic_auth(username, password)}
    return {}
