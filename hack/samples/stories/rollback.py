"""(e) An update that is right but slow: it rolls back by itself, and no client notices."""

import json
import time
from typing import Any

from hack.samples import load
from hack.samples.load import WIDTH
from hack.samples.shell import NAMESPACE, DemoError, Shell

FIRST = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: ranking
spec:
  source:
    uri: pvc://models/linear-1.onnx
  accelerators: [{class: cpu}]
  backends: [cpu]
  replicas: 2
  rollout:
    canary: {hold: 10s}
"""
SLOW = FIRST.replace("linear-1", "linear-slow")
BODY = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
CLIENTS = "clients"


def run(shell: Shell) -> None:
    """Run the story."""
    with shell.chapter(
        "(e) An update that is 200 times slower rolls back by itself, under requests"
    ):
        shell.quiet(f"kubectl delete im/ranking pod/{CLIENTS} --ignore-not-found --wait")
        shell.show("kubectl apply --filename -", stdin=FIRST)
        shell.show("kubectl wait --for=condition=Ready im/ranking --timeout=120s")
        before = _status(shell)["active"]["revision"]
        _start_clients(shell)
        print("\nClients send 125 requests a second. Now the same answers, computed slowly:")
        began = time.monotonic()
        shell.show("kubectl apply --filename -", stdin=SLOW)
        shell.show("kubectl wait --for=condition=RolledBack im/ranking --timeout=120s")
        took = time.monotonic() - began
        shell.show("kubectl get im ranking")
        shell.show("kubectl get im ranking --output 'jsonpath={.status.lastFailure.message}'")
        counts = _counts(shell)
        print(
            f"\nrolled back {took:.0f} s after the apply; clients sent {counts['sent']} requests:"
            f" {counts['failed']} failed, the slowest took {counts['slowest'] * 1000:.0f} ms"
        )
        shell.quiet(f"kubectl delete pod {CLIENTS} --grace-period=0 --force")
        if counts["failed"] or _status(shell)["active"]["revision"] != before:
            raise DemoError(f"the update was noticed: {counts['failures']}")


def _start_clients(shell: Shell) -> None:
    images = shell.quiet("kubectl get deployment ranking-cpu --output json")
    image = json.loads(images)["spec"]["template"]["spec"]["containers"][0]["image"]
    pod = load.pod(CLIENTS, NAMESPACE, ["ranking"], BODY, image)
    shell.quiet("kubectl apply --filename -", stdin=json.dumps(pod))
    shell.until("the clients' requests", lambda: _counts(shell)["sent"] > 20)


def _counts(shell: Shell) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{CLIENTS}:{load.PORT}/proxy/"
    return dict(json.loads(shell.quiet(f"kubectl get --raw {path}")))


def _status(shell: Shell) -> dict[str, Any]:
    return dict(json.loads(shell.quiet("kubectl get im ranking --output json"))["status"])
