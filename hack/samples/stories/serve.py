"""(a) A model file becomes a Service."""

import json
import time

from hack.samples.magika import label, tensor
from hack.samples.shell import Shell, get_json

MAGIKA = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: magika                      # Google's file type detector, from its Python package
spec:
  source:
    uri: pvc://models/magika.onnx   # backend, image, shapes and opset are determined automatically
"""
QUESTIONS = {
    "a Python script": b"import sys\n\nfor line in sys.stdin:\n    print(line.rstrip()[::-1])\n"
    * 3,
    "a Dockerfile": b'FROM debian:12\nRUN apt-get update && apt-get install -y curl\nCMD ["curl"]\n',
    "a JSON document": json.dumps({"name": "x", "tags": ["a", "b"], "size": [1, 2, 3]}).encode(),
}


def run(shell: Shell) -> None:
    """Run the story."""
    with shell.chapter(
        "(a) From a file to a service: one manifest, no image, no backend, no shapes"
    ):
        shell.show("kubectl apply --filename -", stdin=MAGIKA)
        shell.show("kubectl wait --for=condition=Ready im/magika --timeout=180s")
        shell.show("kubectl get im magika")
        shell.show("kubectl get jobs,pods,services --selector enginewright.dev/model=magika")
        print("\nWhat happened, in the model's own Events:")
        shell.show("kubectl events --for im/magika")
        with shell.forward("service/magika", 80) as url:
            for what, content in QUESTIONS.items():
                ask(url, what, content)
            execution = get_json(f"{url}/v2/models/magika/execution")
            print("\nThe execution provider of its nodes, as reported by ONNX Runtime:")
            print(f"\n$ curl --silent {url}/v2/models/magika/execution | jq .placement.nodes")
            print(json.dumps(execution["placement"]["nodes"], indent=2))


def ask(url: str, what: str, content: bytes) -> None:
    """Send `content` to the model and print its answer."""
    body = {"inputs": [tensor(content)]}
    start = time.monotonic()
    answer = get_json(f"{url}/v2/models/magika/infer", json.dumps(body).encode())
    milliseconds = (time.monotonic() - start) * 1000
    scores = answer["outputs"][0]["data"]
    print(f"  {what}: magika detects {label(scores)} ({max(scores):.1%}, {milliseconds:.0f} ms)")
