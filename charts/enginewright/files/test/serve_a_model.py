"""Why: `helm test` shows that this release serves. Its pod applies a small model, waits, and compares an answer.

The pod is the model's source too, so that nothing has to be uploaded. The model is deleted at the end; it also belongs
to the pod, so that it goes with a pod that was killed.
"""

import contextlib
import http.server
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from onnx import checker, parser

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MODEL: Final = """
<ir_version: 9, opset_import: ["": 17]>
double_and_add (float[3] x, float[3] one) => (float[3] y) { twice = Add(x, x)  y = Add(twice, one) }
"""
REQUEST: Final = {
    "inputs": [
        {"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, -3.5]},
        {"name": "one", "shape": [3], "datatype": "FP32", "data": [1, 1, 1]},
    ]
}
ANSWER: Final = [3, 5, -6]
PORT: Final = 8080
PAUSE: Final = 1.0  # seconds between two looks


class FailedError(Exception):
    """The release does not serve the model; the message says what it said instead."""


class Api:
    """The API server, asked as this pod's service account."""

    def __init__(self, server: str, namespace: str) -> None:
        """Read what the account has; `server` is the URL without path."""
        self._server = server
        self._models = f"/apis/enginewright.dev/v1alpha1/namespaces/{namespace}/inferencemodels"
        authority = ACCOUNT / "ca.crt"
        self._context = (
            ssl.create_default_context(cafile=str(authority)) if authority.exists() else None
        )

    def create(self, model: dict[str, Any]) -> None:
        """Create an InferenceModel."""
        self._send("POST", self._models, model)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return an InferenceModel, None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._send("GET", f"{self._models}/{name}")
        return None

    def delete(self, name: str) -> None:
        """Delete an InferenceModel, and wait until it is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._send("DELETE", f"{self._models}/{name}")
        while self.read(name):
            time.sleep(PAUSE)

    def _send(self, verb: str, path: str, body: object = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
        try:
            return send_json(verb, self._server + path, body, headers, self._context)
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            if error.code == http.HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(message) from None
            raise FailedError(f"the API server refused {verb} {path}: {message}") from None


def send_json(
    verb: str,
    url: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """Send JSON and return the JSON of the answer, past any proxy.

    Raises:
        HTTPError: The answer is no success.
        OSError: There is no answer.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=verb)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        request.add_header(name, value)
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    with urllib.request.build_opener(*handlers).open(request, timeout=30) as answer:
        read: dict[str, Any] = json.load(answer)
    return read


def serve_source(content: bytes, address: str) -> str:
    """Answer every GET and HEAD with these bytes, in a thread of its own; return their URL."""

    class Source(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(http.HTTPStatus.OK)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(content)

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    server = Server((address, PORT), Source)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://[{address}]:{PORT}" if ":" in address else f"http://{address}:{PORT}"


def wait_ready(api: Api, name: str, is_late: Callable[[], bool]) -> None:
    """Print what the model's Ready says whenever that changes, until it is True.

    Raises:
        FailedError: The model is Stalled, or it is too late.
    """
    said = ""
    while True:
        model = api.read(name) or {}
        conditions = {one["type"]: one for one in model.get("status", {}).get("conditions", ())}
        ready = conditions.get("Ready", {})
        if (text := f"{ready.get('reason', 'waiting')}: {ready.get('message', '')}") != said:
            said = text
            print(said, flush=True)
        if ready.get("status") == "True":
            return
        if conditions.get("Stalled", {}).get("status") == "True":
            raise FailedError(f"the model is Stalled. {said}")
        if is_late():
            raise FailedError(f"the model is not Ready in time. {said}")
        time.sleep(PAUSE)


def ask(url: str, is_late: Callable[[], bool]) -> None:
    """Send the request once the model's Service reaches a pod, and compare the answer.

    Raises:
        FailedError: The answer is wrong, or there is none in time.
    """
    answer = None
    while answer is None:
        try:
            answer = send_json("POST", url, REQUEST)["outputs"][0]["data"]
        except OSError as error:
            if is_late():
                raise FailedError(f"{url} does not answer: {error}") from None
            time.sleep(PAUSE)
    if answer != ANSWER:
        raise FailedError(f"the answer is {answer}, and {ANSWER} is right")
    print(f"the answer is {answer}, which is right")


def main() -> int:
    """Serve the model's file, apply the model, compare its answer, and delete it."""
    settings = os.environ
    name = settings["NAME"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end = time.monotonic() + float(settings["SECONDS"])
    model = parser.parse_model(MODEL)
    checker.check_model(model)
    source = serve_source(model.SerializeToString(deterministic=True), settings["ADDRESS"])
    owner = {"apiVersion": "v1", "kind": "Pod", "name": settings["POD"], "uid": settings["POD_UID"]}
    body = {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"source": {"uri": f"{source}/model.onnx"}, **json.loads(settings["SPEC"])},
    }
    api = Api(settings["SERVER"], settings["NAMESPACE"])
    api.delete(name)  # what a killed pod left
    try:
        api.create(body)
        wait_ready(api, name, lambda: time.monotonic() > end)
        ask(f"{settings['SERVICE']}/v2/models/{name}/infer", lambda: time.monotonic() > end)
    except FailedError as error:
        print(f"failed: {error}", flush=True)
        return 1
    finally:
        api.delete(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
