"""A web server in the cluster with the files of claim `models`.

It can hold a file back, which keeps stage `fetch` of a Job running for as long as a test needs.
"""

from dataclasses import dataclass
from typing import Any, Final

from hack.samples.load import pod_spec
from tests.e2e.harness import Namespace, eventually, image
from tests.support.plan_objects import make_object

NAME: Final = "files"
PORT: Final = 8000
_PROGRAM: Final = """\
import os, time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

class Files(SimpleHTTPRequestHandler):
    def translate_path(self, path):
        name = path.rpartition("/")[2]
        own = "/tmp/files/" + name
        return own if os.path.exists(own) else "/models/" + name

    def copyfile(self, source, target):
        holder = self.path.rpartition("/")[0]
        due = 0.0
        while holder and not os.path.exists("/tmp" + holder):
            if time.monotonic() >= due:  # keeps the connection alive: silence would be a source error
                target.write(source.read(1))
                due = time.monotonic() + 5
            time.sleep(0.1)
        super().copyfile(source, target)

ThreadingHTTPServer(("", 8000), Files).serve_forever()
"""


@dataclass(frozen=True)
class Files:
    """The running server."""

    namespace: Namespace

    def url(self, file: str, *, held_by: str = "") -> str:
        """Return the URL of a file, most of which is held back until `release(held_by)`."""
        path = f"{held_by}/{file}" if held_by else file
        return f"http://{NAME}.{self.namespace.name}.svc.cluster.local:{PORT}/{path}"

    def put(self, file: str, *, of: str) -> None:
        """Replace a file by a copy of one in the claim."""
        copy = f"mkdir -p /tmp/files && cp /models/{of} /tmp/{file} && mv /tmp/{file} /tmp/files/"
        self.namespace.kubectl("exec", f"deployment/{NAME}", "--", "sh", "-c", copy)

    def release(self, holder: str) -> None:
        """Stop holding back files of this holder."""

        def touch() -> bool:
            file = f"/tmp/{holder}"
            self.namespace.kubectl("exec", f"deployment/{NAME}", "--", "touch", file)
            return True

        eventually(touch, 60, f"the release of {holder}")  # a kubelet may have just been killed


def serve(namespace: Namespace) -> Files:
    """Start the server in a namespace with the claim."""
    namespace.apply(*_objects())
    namespace.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=120s")
    return Files(namespace)


def _objects() -> list[dict[str, Any]]:
    labels = {"app": NAME}
    container = {
        "name": NAME,
        "command": ["python3", "-c", _PROGRAM],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    pod = {**pod_spec({**container, "image": image("cpu")}), "volumes": volumes}
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": PORT}]}
    return [
        make_object("Deployment", NAME, spec=deployment),
        make_object("Service", NAME, spec=service),
    ]
