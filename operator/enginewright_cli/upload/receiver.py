"""What the pod of an upload runs, as `python3 -c`: takes files over HTTP, and only with the token of its pod.

Nothing but the standard library, since it runs in any runtime image.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(os.environ["UPLOAD_ROOT"]).resolve()
TOKEN = os.environ["UPLOAD_TOKEN"]
CHUNK = 1 << 20
QUIET_SECONDS = 1.0  # after which a request that is refused is taken to be sent


class UploadHandler(BaseHTTPRequestHandler):
    """Writes the body of POST /<path> to <path> in the claim, once it is complete; with `Look: true`, reads what is there."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer the probe."""
        self.answer(200, {})

    def do_POST(self) -> None:
        """Store one file, or look for it, and answer with its digest."""
        if self.headers.get("Enginewright-Upload") != TOKEN:
            self.refuse(403, "the token is not that of this pod")
            return
        path = (ROOT / unquote(self.path).lstrip("/")).resolve()
        if ROOT not in path.parents:
            self.refuse(400, "the path leads out of the claim")
            return
        try:
            if self.headers.get("Look") == "true":
                self.answer(200, {"sha256": digest(path)} if path.exists() else {})
            else:
                self.store(path, int(self.headers["Content-Length"]))
        except OSError as error:
            self.refuse(507, error.strerror or str(error))

    def store(self, path: Path, size: int) -> None:
        """Write a file beside its place, then move it there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{TOKEN[:8]}")
        try:
            with draft.open("wb") as writer:
                while size and (chunk := self.rfile.read(min(size, CHUNK))):
                    writer.write(chunk)
                    size -= len(chunk)
                writer.flush()
                os.fsync(writer.fileno())
            if size:
                self.close_connection = True
                return
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        self.answer(200, {"sha256": digest(path)})

    def refuse(self, status: int, why: str) -> None:
        """Answer why nothing was stored, once nothing is sent any more: proxies lose an answer that comes before."""
        self.close_connection = True
        self.connection.settimeout(QUIET_SECONDS)
        with suppress(OSError):
            while self.rfile.read1(CHUNK):
                pass
        self.answer(status, {"error": why})

    def answer(self, status: int, document: dict[str, str]) -> None:
        """Answer with a JSON document."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def digest(path: Path) -> str:
    """Return the digest of a file, read again from the claim."""
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), UploadHandler).serve_forever()
