"""(d) The incident: a GPU image without CUDA libraries, without Enginewright and with it."""

import json
import time
from typing import Any

from hack.samples.load import pod_spec
from hack.samples.shell import NAMESPACE, DemoError, Shell, get_json

MONITORING = "enginewright-monitoring"
SERVER = """\
import http.server, onnxruntime as ort
session = ort.InferenceSession(
    "/models/magika.onnx", providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
)  # no exception
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("", 8080), Ready).serve_forever()
"""
AVAILABLE_PROVIDERS = (
    "import onnxruntime as ort; print('device              ', ort.get_device());"
    " print('available providers ', ', '.join(ort.get_available_providers()))"
)
SESSION_PROVIDERS = (
    "import onnxruntime as ort; ort.set_default_logger_severity(4);"
    " s = ort.InferenceSession('/models/magika.onnx',"
    " providers=['CUDAExecutionProvider', 'CPUExecutionProvider']);"
    " print('the session runs on ', ', '.join(s.get_providers()))"
)
FORBID = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: incident                    # the same image, node and provider as above
spec:
  source:
    uri: pvc://models/magika.onnx
  accelerators: [{class: l4}]
  backends: [cuda]
"""
ALLOW = """\
  fallback: {policy: Allow}         # better slow than unavailable
"""


def run(shell: Shell) -> None:
    """Run the story."""
    operator = shell.quiet(
        "kubectl get deployment --namespace enginewright-system enginewright --output json"
    )
    (container,) = json.loads(operator)["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value", "") for item in container["env"]}
    config = json.loads(env["ENGINEWRIGHT_CONFIG"])
    with shell.chapter("(d) The incident in a plain pod: everything looks fine"):
        _before(shell, config["images"]["gpu"])
    with shell.chapter(
        "(d) The same with Enginewright: no traffic, and a condition with the reason"
    ):
        _show_forbid(shell)
    with shell.chapter("(d) If the owner allows the fallback, it serves, and an alert reports it"):
        _show_allow(shell)


def _before(shell: Shell, image: str) -> None:
    pod = _plain_pod(image)
    print(f"\nA typical server in a plain pod, with the image {image.rpartition('/')[2]}:\n")
    print("\n".join(f"    {line}" for line in SERVER.rstrip().splitlines()))
    shell.quiet("kubectl apply --filename -", stdin=json.dumps(pod))
    shell.show("kubectl wait --for=condition=Ready pod/before --timeout=120s")
    shell.show("kubectl get pod before")
    shell.show(f'kubectl exec before -- python3 -c "{AVAILABLE_PROVIDERS}"')
    print("\nAnd the provider that is really used:")
    providers = shell.show(f'kubectl exec before -- python3 -c "{SESSION_PROVIDERS}"')
    if providers.split()[-1] != "CPUExecutionProvider":
        raise DemoError("the session does not run on the CPU here: this node has CUDA")
    shell.quiet("kubectl delete pod before --grace-period=0 --force")


def _show_forbid(shell: Shell) -> None:
    shell.quiet("kubectl delete im incident --ignore-not-found --wait")
    shell.show("kubectl apply --filename -", stdin=FORBID)

    def is_refused() -> bool:
        condition = shell.condition("incident", "PlacementVerified")
        return bool(condition.get("status") == "False")

    shell.until("PlacementVerified=False", is_refused)
    shell.show("kubectl get im incident")
    shell.show(
        "kubectl get pods --selector enginewright.dev/model=incident,enginewright.dev/component=serve"
    )
    shell.show(
        "kubectl get im incident --output "
        "'jsonpath={.status.conditions[?(@.type==\"PlacementVerified\")].message}'"
    )


def _show_allow(shell: Shell) -> None:
    began = time.monotonic()
    shell.show("kubectl apply --filename -", stdin=FORBID + ALLOW)
    shell.show("kubectl wait --for=condition=Ready im/incident --timeout=180s")
    shell.show("kubectl wait --for=condition=FallbackActive im/incident --timeout=60s")
    served = time.monotonic()
    shell.show("kubectl get im incident")
    print("\nPrometheus scrapes the sidecar; Alertmanager has sent this to the team's webhook:")
    with shell.forward("service/alertmanager", 9093, MONITORING) as url:
        alert = shell.until("the alert", lambda: _alert(url), 90)
    fired = time.monotonic()
    print(json.dumps({key: alert[key] for key in ("labels", "annotations")}, indent=2))
    print(
        f"\nserving, with the fallback reported, {served - began:.0f} s after the apply;"
        f" the alert fired {fired - served:.0f} s later"
    )


def _alert(url: str) -> dict[str, Any] | None:
    for alert in get_json(f"{url}/api/v2/alerts"):
        labels = alert["labels"]
        if labels["alertname"] == "EnginewrightCPUFallback" and labels["model"] == "incident":
            return dict(alert)
    return None


def _plain_pod(image: str) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": image,
        "command": ["python3", "-c", SERVER],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "before", "namespace": NAMESPACE},
        "spec": {
            **pod_spec(container),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        },
    }
