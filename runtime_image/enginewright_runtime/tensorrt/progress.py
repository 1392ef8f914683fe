"""The progress of a build: written by the build process, served by the stage that waits for it.

The two share a file, so that neither a crash nor a stuck reader affects the other.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from enginewright_contract.report import Progress
from typing_extensions import override

_log: Final = logging.getLogger(__name__)
_STAGE: Final = "build"
_CLIENT_SECONDS: Final = 5.0


def report_progress(path: Path, percent: float, phase: str) -> None:
    """Write the progress file; readers see the old or the new one."""
    temporary = path.with_suffix(".new")
    report = Progress(stage=_STAGE, percent=max(0, min(100, int(percent))), phase=phase)
    temporary.write_text(report.to_json())
    temporary.replace(path)


@contextlib.contextmanager
def serve(path: Path, port: int) -> Iterator[int | None]:
    """Answer GET /progress with the file while in the context; yield the port if it can be bound."""
    report_progress(path, 0, "starting")

    class Handler(_Handler):
        file = path

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        _log.warning("no progress on port %d: %s", port, error.strerror)
        yield None
        return
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    file: Path
    timeout = _CLIENT_SECONDS  # of a client that sends nothing

    def do_GET(self) -> None:
        if self.path != "/progress":
            self.send_error(404)
            return
        body = self.file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the operator polls every few seconds."""
