"""The Hugging Face hub's HTTP interface over files in memory: the real one cannot be reached in tests.

Answers as the hub does: a commit for a revision, lists with digests of large files, downloads by
way of a content network at another address, errors with a message in a header.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.source_web import Answer, ScriptedServer, Seen

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_s3cret"
_LARGE = 1024  # bytes; larger files are kept apart, as Git LFS does
_PAGE = 3
_MISSING = (404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b"")


@dataclass
class Hub:
    """Repository org/model (or a data set org/data) with these files."""

    files: Mapping[str, bytes]
    commit: str = COMMIT  # of every revision
    private: bool = False
    corrupt: bool = False  # the content network sends something else
    # answers a request for a list, by its cursor, in the place of the files; returns entries and the next cursor
    lists: Callable[[str], tuple[list[dict[str, Any]], str]] | None = None
    server: ScriptedServer = field(init=False)
    network: ScriptedServer = field(init=False)

    def __enter__(self) -> Self:
        self.server = ScriptedServer(self._answer).__enter__()
        self.network = ScriptedServer(self._content).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.__exit__(kind, error, trace)
        self.network.__exit__(kind, error, trace)

    @property
    def secret(self) -> dict[str, str]:
        token = {"HF_TOKEN": TOKEN} if self.private else {}
        return {"HF_ENDPOINT": self.server.url, **token}

    def _answer(self, seen: Seen) -> Answer:
        if self.private and seen.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"X-Error-Message": "Access to model org/model is restricted"}, b""
        path = urlsplit(seen.path).path
        if match := re.fullmatch(r"/api/(?:models|datasets)/org/\w+/revision/(.+)", path):
            is_revision = unquote(match.group(1)) in {"main", "v1.0", "refs/pr/7", self.commit}
            missing = {"X-Error-Code": "RevisionNotFound"}
            return _json({"sha": self.commit}) if is_revision else (404, missing, b"")
        if path.endswith(f"/paths-info/{self.commit}"):
            paths = json.loads(seen.body)["paths"]
            return _json([entry for path in paths if (entry := self._entry(path))])
        if match := re.fullmatch(
            rf"/api/(?:models|datasets)/org/\w+/tree/{self.commit}(?:/(.*))?", path
        ):
            return self._tree(unquote(match.group(1) or ""), seen.path)
        if match := re.fullmatch(rf"/(?:datasets/)?org/\w+/resolve/{self.commit}/(.+)", path):
            return self._resolve(unquote(match.group(1)))
        return 404, {"X-Error-Message": "Repository not found"}, b""

    def _entry(self, path: str) -> dict[str, Any] | None:
        content = self.files.get(path)
        if content is None:
            inside = any(name.startswith(f"{path}/") for name in self.files)
            return {"type": "directory", "path": path, "oid": "0"} if inside else None
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": "1"}
        if len(content) > _LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return entry

    def _tree(self, folder: str, url: str) -> Answer:
        query = parse_qs(urlsplit(url).query)
        if self.lists:
            return self._page(*self.lists(query.get("cursor", [""])[0]), url)
        prefix = f"{folder}/" if folder else ""
        below = [name for name in sorted(self.files) if name.startswith(prefix)]
        if "recursive" not in query:
            below = [name for name in below if "/" not in name.removeprefix(prefix)]
        start = int(query.get("cursor", ["0"])[0])
        entries = [self._entry(name) for name in below[start : start + _PAGE]]
        end = start + _PAGE
        return self._page(entries, str(end) if end < len(below) else "", url)

    def _page(self, entries: Sequence[dict[str, Any] | None], cursor: str, url: str) -> Answer:
        status, headers, body = _json(entries)
        if cursor:
            rest = "&recursive=true" if "recursive" in urlsplit(url).query else ""
            following = f"{self.server.url}{urlsplit(url).path}?cursor={cursor}{rest}"
            headers["Link"] = f'<{following}>; rel="next"'
        return status, headers, body

    def _resolve(self, path: str) -> Answer:
        content = self.files.get(path)
        if content is None:
            return _MISSING
        if len(content) <= _LARGE:
            return 200, {"ETag": '"1"'}, content
        address = self.network.url.replace("127.0.0.1", "localhost")
        return 302, {"Location": f"{address}/{path}?Signature=s3cretsig"}, b""

    def _content(self, seen: Seen) -> Answer:
        content = self.files[unquote(urlsplit(seen.path).path).lstrip("/")]
        return 200, {"ETag": '"2"'}, content[:-1] + b"!" if self.corrupt else content


def _json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
