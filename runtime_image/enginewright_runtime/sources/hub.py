"""Models of the Hugging Face hub: hf://ORG/REPO[@REVISION][/PATH], hf://datasets/... for data.

Uses the hub's HTTP API (huggingface.co/docs/hub/api), which mirrors also implement. A revision is
resolved once, so that all files are of one commit. Downloads from /resolve/ are redirected to a CDN,
which does not get the token.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from enginewright_contract.schemes import HF
from typing_extensions import override

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.peers import Peers
from enginewright_runtime.sources.base import MOST_FILES, Entry, Missing, join_path, parent_of
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.web import Constant, Web, show_url
from enginewright_runtime.sources.web_source import Located, WebSource

_HUB: Final = "https://huggingface.co"
_ENDPOINT_KEY: Final = "HF_ENDPOINT"  # of a mirror; the hub's libraries use the same name
_TOKENS: Final = ("HF_TOKEN", "token")
_ADDRESS: Final = re.compile(
    r"(?:(?P<kind>datasets|spaces|models)/)?(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
_NEXT: Final = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_MOST_PAGES: Final = 1000  # of a listing; the hub's pages have a thousand entries
_SMALLER: Final = "name the file, or a smaller folder"
_REMEDY: Final = (
    "put a token of an account that may read it, and has accepted its conditions, into the Secret in"
    f" secretRef (key {HF.keys})"
)


class HubSource(WebSource):
    """A file or folder of one commit of a repository."""

    def __init__(self, uri: str, secret: Secret) -> None:
        parts = _ADDRESS.fullmatch(uri.removeprefix(HF.prefix))
        if parts is None:
            raise unreachable(
                f"the source {uri!r} names no repository", "write hf://ORG/REPO[@REVISION]/PATH"
            )
        secret.one_of((_TOKENS[0],), also=(_TOKENS[1], _ENDPOINT_KEY))
        token = secret.get(*_TOKENS) or os.environ.get("HF_TOKEN")
        endpoint = secret.get(_ENDPOINT_KEY) or os.environ.get(_ENDPOINT_KEY) or _HUB
        if urlsplit(endpoint).scheme not in {"http", "https"}:
            raise unreachable(f"{_ENDPOINT_KEY} is no URL", "write https://HOST")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(Web(secret, Constant(headers), _REMEDY, Peers()), uri)
        self._repository = parts["repo"]
        self._kind = parts["kind"] or "models"
        self._endpoint = endpoint.rstrip("/")
        self._revision = unquote(parts["revision"] or "main")
        self._path = (parts["path"] or "").strip("/")
        self._folder = self._path  # that paths are relative to, after `find`
        self._commit = ""
        self._digests: dict[str, str] = {}  # of large files, by path

    @property
    @override
    def pin(self) -> str | None:
        return f"commit {self._commit}" if self._commit else None

    @override
    def current_pin(self) -> str | None:
        self._commit = self._resolve()
        return self.pin

    @override
    def head(self, path: str) -> str | None:
        """Return the digest of a large file, which the hub lists."""
        full_path = join_path(self._folder, path)
        if full_path not in self._digests:
            self._look_up(full_path)
        return _format_digest(self._digests.get(full_path))

    @override
    def find(self) -> str | None:
        self._commit = self._resolve()
        if not self._path:
            return None
        entry = self._look_up(self._path)
        if entry is None:
            raise unreachable(f"{self.shown}: commit {self._commit[:12]} has no such file")
        if entry.get("type") == "directory":
            return None
        self._folder = parent_of(self._path)
        return PurePosixPath(self._path).name

    @override
    def _entries(self, *, deep: bool) -> Iterator[Entry]:
        prefix = f"{self._path}/" if self._path else ""
        folders = 0
        for entry in self._list_entries(deep=deep):
            if entry.get("type") == "file":
                self._remember(entry)
                path = str(entry["path"])
                digest = _format_digest(self._digests[path])
                yield Entry(path.removeprefix(prefix), entry.get("size"), digest)
                continue
            folders += 1
            if folders > MOST_FILES:
                raise unreachable(f"{self.shown} has more than {MOST_FILES} folders", _SMALLER)

    def _list_entries(self, *, deep: bool) -> Iterator[dict[str, Any]]:
        where = f"/{quote(self._path)}" if self._path else ""
        url = f"{self._api()}/tree/{self._commit}{where}" + ("?recursive=true" if deep else "")
        read: set[str] = set()
        while len(read) < _MOST_PAGES:
            read.add(url)
            answer = self._web.read(url)
            yield from answer.json(show_url(url))
            following = _NEXT.search(answer.headers.get("Link", ""))
            if following is None:
                return
            url = urljoin(url, following.group(1))
            if url in read:
                raise unreachable(
                    f"{self.shown}: {show_url(url)} leads back to a page that was listed before",
                    f"name the file, or write another {_ENDPOINT_KEY}",
                )
        raise unreachable(f"{self.shown} is listed on more than {_MOST_PAGES} pages", _SMALLER)

    @override
    def copy(self, path: str, target: Path, quota: DiskQuota) -> Copied:
        """Download a file; its validator is the digest that the hub lists."""
        copied = super().copy(path, target, quota)
        return replace(
            copied, validator=_format_digest(self._digests[join_path(self._folder, path)])
        )

    @override
    def _locate(self, path: str) -> Located:
        full_path = join_path(self._folder, path)
        if full_path not in self._digests and self._look_up(full_path) is None:
            raise Missing(f"{self.shown}: commit {self._commit[:12]} has no file {full_path!r}")
        kind = "" if self._kind == "models" else f"{self._kind}/"
        url = f"{self._endpoint}/{kind}{self._repository}/resolve/{self._commit}/{quote(full_path)}"
        return Located(url, full_path, sha256=self._digests.get(full_path))

    def _resolve(self) -> str:
        url = f"{self._api()}/revision/{quote(self._revision, safe='')}"
        try:
            answer = self._web.read(url).json(show_url(url))
        except Missing as missing:
            raise unreachable(
                f"{self.shown}: there is no such repository or revision, {missing}",
                f"check repository and revision; if it is private, {_REMEDY}",
            ) from None
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{7,64}", commit):
            raise unreachable(f"{show_url(url)} names no commit", "check HF_ENDPOINT")
        return commit

    def _look_up(self, path: str) -> dict[str, Any] | None:
        url = f"{self._api()}/paths-info/{self._commit}"
        body = json.dumps({"paths": [path], "expand": False}).encode()
        headers = {"Content-Type": "application/json"}
        answer = self._web.read(url, post=body, headers=headers).json(show_url(url))
        for entry in answer:
            if entry.get("path") == path:
                self._remember(entry)
                return dict(entry)
        return None

    def _remember(self, entry: dict[str, Any]) -> None:
        digest = (entry.get("lfs") or {}).get("oid", "")
        self._digests[str(entry["path"])] = str(digest).removeprefix("sha256:")

    def _api(self) -> str:
        return f"{self._endpoint}/api/{self._kind}/{self._repository}"


def _format_digest(sha256: str | None) -> str | None:
    return f"sha256 {sha256}" if sha256 else None
