#!/usr/bin/env python3
"""Receives Alertmanager's notifications and makes them available to tests and demo.

Every POST is written to stdout as one line of JSON, and GET / returns the last ones as a JSON list,
oldest first, each with the Unix time of its arrival. Standard library only: it runs in the image
with Prometheus.
"""

import argparse
import json
import sys
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

KEPT: Final = 1000  # notifications
LARGEST: Final = 1 << 20  # bytes of one

_received: deque[dict[str, Any]] = deque(maxlen=KEPT)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        """Return the kept notifications."""
        self._answer(200, list(_received))

    def do_POST(self) -> None:
        """Keep one notification."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= LARGEST:
            self._answer(413, {"error": f"the notification does not have 1 to {LARGEST} bytes"})
            return
        try:
            notification = json.loads(self.rfile.read(length))
        except ValueError as error:
            self._answer(400, {"error": f"the notification is not JSON: {error}"})
            return
        entry = {"time": time.time(), "notification": notification}
        _received.append(entry)
        print(json.dumps(entry), flush=True)
        self._answer(200, {})

    def _answer(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # the image has no typing_extensions for @override, and the argument has the base's name
    def log_message(self, format: str, *args: object) -> None:  # type: ignore[explicit-override]  # noqa: A002
        """Log nothing: stdout is for notifications."""


def main() -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="0.0.0.0")  # noqa: S104 - a pod's only address
    parser.add_argument("--port", type=int, required=True, help="0: any free port")
    arguments = parser.parse_args()
    server = ThreadingHTTPServer((arguments.address, arguments.port), Handler)
    server.daemon_threads = True
    print(f"listening on port {server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
