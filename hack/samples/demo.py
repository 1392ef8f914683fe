"""The demo: what a user would type, what they would see, and why it matters.

Every command shown is run, and every line of output is the command's own.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hack.samples.magika import REPOSITORY, features, label
from hack.samples.models import write_models

CLUSTER = "enginewright"
NAMESPACE = "demo"
CONTEXT = os.environ.get("CONTEXT", "")

MAGIKA = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: magika                      # Google's detector of file types, as its Python package ships it
spec:
  source:
    uri: pvc://models/magika.onnx   # no backend, image, shape or opset is named: they are found
"""
TOO_NEW = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: too-new                     # exported with an opset that the runtime does not know
spec:
  source:
    uri: pvc://models/newer-opset.onnx
"""
QUESTIONS = {
    "a Python script": b"import sys\n\nfor line in sys.stdin:\n    print(line.rstrip()[::-1])\n"
    * 3,
    "a Dockerfile": b'FROM debian:12\nRUN apt-get update && apt-get install -y curl\nCMD ["curl"]\n',
    "a JSON document": json.dumps({"name": "x", "tags": ["a", "b"], "size": [1, 2, 3]}).encode(),
}


class DemoError(Exception):
    """A step did not do what the demo shows."""


class Shell:
    """Runs commands as a user does, and shows them."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.times: list[tuple[str, float]] = []

    def show(self, command: str, *, stdin: str | None = None, timeout: float = 300) -> str:
        """Run a command, print it and its output, and return the output.

        Raises:
            DemoError: It failed.
        """
        print(f"\n$ {command}", flush=True)
        if stdin:
            print("\n".join(f"    {line}" for line in stdin.rstrip().splitlines()), flush=True)
        output = self.quiet(command, stdin=stdin, timeout=timeout)
        print(output.rstrip(), flush=True)
        return output

    def quiet(self, command: str, *, stdin: str | None = None, timeout: float = 300) -> str:
        """Run a command and return its output. Raises DemoError when it fails."""
        arguments = shlex.split(command)
        if arguments[0] == "kubectl":
            context = ["--context", CONTEXT] if CONTEXT else []
            arguments = ["kubectl", *context, "--namespace", NAMESPACE, *arguments[1:]]
        done = subprocess.run(
            arguments,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environment,
        )
        if done.returncode != 0:
            raise DemoError(f"`{command}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def step(self, title: str, *command: str) -> None:
        """Run a long command of ours, its progress shown. Raises DemoError when it fails."""
        print(f"\n=== {title}", flush=True)
        start = time.monotonic()
        done = subprocess.run(command, cwd=REPOSITORY, env=self.environment, check=False)
        if done.returncode != 0:
            raise DemoError(f"`{' '.join(command)}` failed; its output is above")
        self.times.append((title, time.monotonic() - start))

    @contextlib.contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Announce a part of the story and take its time."""
        print(f"\n{'=' * 100}\n{title}\n{'=' * 100}", flush=True)
        start = time.monotonic()
        yield
        self.times.append((title, time.monotonic() - start))


def main() -> int:
    """Tell the story; 0 when every part of it was seen."""
    shell = Shell()
    try:
        _set_up(shell)
        _serve(shell)
        _refuse(shell)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; run it again to go on", file=sys.stderr)
        return 130
    _look_around(shell)
    return 0


def _set_up(shell: Shell) -> None:
    if not CONTEXT:
        shell.step(
            "a Kubernetes cluster of two nodes", "hack/cluster/cluster", "up", "--nodes", "2"
        )
        told = shell.quiet("hack/cluster/cluster env")
        for name, pattern in (("KUBECONFIG", r"KUBECONFIG=(\S+)"), ("PATH", r'PATH="([^:]+):')):
            found = re.search(pattern, told)
            if not found:
                raise DemoError(f"`hack/cluster/cluster env` names no {name}")
            rest = f":{shell.environment['PATH']}" if name == "PATH" else ""
            shell.environment[name] = found.group(1) + rest
    shell.step("images", "hack/images", "build")
    shell.step("Enginewright, by Helm", "hack/install", CLUSTER)
    real = Path(shell.quiet("hack/models").strip().splitlines()[-1])
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    shell.quiet("kubectl apply --filename -", stdin=json.dumps(namespace))
    with tempfile.TemporaryDirectory() as folder:
        write_models(real, Path(folder))
        shell.environment["NAMESPACE"] = NAMESPACE
        shell.step("model files, in a claim named models", "hack/upload-models", folder)


def _serve(shell: Shell) -> None:
    with shell.chapter(
        "(a) From a file to a service: one manifest, no image, no backend, no shapes"
    ):
        shell.show("kubectl apply --filename -", stdin=MAGIKA)
        shell.show("kubectl wait --for=condition=Ready im/magika --timeout=180s")
        shell.show("kubectl get im magika")
        shell.show("kubectl get jobs,pods,services --selector enginewright.dev/model=magika")
        print("\nWhat happened, in the model's own Events:")
        shell.show("kubectl events --for im/magika")
        with _forwarded(shell) as url:
            for what, content in QUESTIONS.items():
                _ask(url, what, content)
            execution = _get(f"{url}/v2/models/magika/execution")
            print("\nWhich execution provider runs its nodes, as ONNX Runtime reports it:")
            print(f"\n$ curl {url}/v2/models/magika/execution")
            print(json.dumps(execution, indent=2)[:1500])


def _refuse(shell: Shell) -> None:
    with shell.chapter(
        "(b) A model that the runtime cannot run gets no traffic, and its owner reads why"
    ):
        shell.show("kubectl apply --filename -", stdin=TOO_NEW)
        shell.show("kubectl wait --for=condition=Stalled im/too-new --timeout=180s")
        shell.show("kubectl get im")
        message = shell.show(
            "kubectl get im too-new --output "
            "jsonpath='{.status.conditions[?(@.type==\"Validated\")].message}'"
        )
        for expected in ("CumProd", "opset 25"):
            if expected not in message:
                raise DemoError(f"the refusal does not name {expected}")
        shell.show("kubectl events --for im/too-new")


@contextlib.contextmanager
def _forwarded(shell: Shell) -> Iterator[str]:
    """Forward the Service to a free port of this machine."""
    context = ["--context", CONTEXT] if CONTEXT else []
    command = [
        "kubectl",
        *context,
        "--namespace",
        NAMESPACE,
        "port-forward",
        "service/magika",
        ":80",
    ]
    print(f"\n$ kubectl port-forward service/magika :80 --namespace {NAMESPACE}", flush=True)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=shell.environment
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        print(line.rstrip(), flush=True)
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not found:
            raise DemoError("the Service cannot be forwarded")
        yield f"http://127.0.0.1:{found.group(1)}"
    finally:
        process.terminate()
        process.wait(10)


def _ask(url: str, what: str, content: bytes) -> None:
    body = {
        "inputs": [
            {"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": features(content)}
        ]
    }
    start = time.monotonic()
    answer = _get(f"{url}/v2/models/magika/infer", json.dumps(body).encode())
    milliseconds = (time.monotonic() - start) * 1000
    scores = answer["outputs"][0]["data"]
    print(
        f"  magika says that {what} is: {label(scores)} ({max(scores):.1%}, {milliseconds:.0f} ms)"
    )


def _get(url: str, body: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return dict(json.load(answer))


def _look_around(shell: Shell) -> None:
    print(f"\n{'=' * 100}\nSeconds each part took")
    for title, seconds in shell.times:
        print(f"  {seconds:6.1f}  {title}")
    flag = f" --context {CONTEXT}" if CONTEXT else ""
    print("\nThe cluster stays up. Look around:")
    if not CONTEXT:
        print('  eval "$(hack/cluster/cluster env)"')
    print(f"  kubectl{flag} --namespace {NAMESPACE} describe im/magika")
    print(f"  kubectl{flag} explain inferencemodel.spec.shapes")
    print(f"  kubectl{flag} --namespace {NAMESPACE} scale im/magika --replicas=2")
    print("Remove it:")
    if CONTEXT:
        print(f"  kubectl{flag} delete namespace {NAMESPACE}")
        print(
            f"  helm --kube-context {CONTEXT} uninstall enginewright --namespace enginewright-system"
        )
    else:
        print("  hack/cluster/cluster down")


if __name__ == "__main__":
    sys.exit(main())
