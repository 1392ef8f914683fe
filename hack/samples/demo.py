"""The demo: shows a user's commands, their output and why it matters.

Every command shown is run, and all output is its own. It runs on the system's Python: images and programs are built
while the virtual environment is created and the first story, which needs no cluster, runs.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from hack.samples.builds import Build, wait_for
from hack.samples.magika import REPOSITORY
from hack.samples.shell import CONTEXT, NAMESPACE, DemoError, Shell
from hack.samples.stories import build, check, incident, refuse, rollback, serve

CLUSTER = "enginewright"
GPUS = 4  # of the node
ENVIRONMENT = REPOSITORY / ".venv"


def main() -> int:
    """Run all stories; return 0 if every one showed what it should."""
    shell = Shell()
    builds = [Build("images", "hack/images", "build")]
    if not CONTEXT:
        # any command of the cluster builds its programs
        builds.append(Build("Kubernetes", "hack/cluster/cluster", "helm", "version"))
    try:
        shell.step("Python packages", "hack/venv", str(ENVIRONMENT), "dev")
        shell.environment["PATH"] = f"{ENVIRONMENT}/bin:{shell.environment['PATH']}"
        models = Path(shell.quiet("hack/models").strip().splitlines()[-1])
        check.run(shell, models)
        print("\n=== images and programs, once", flush=True)
        wait_for(builds, shell)
        _set_up(shell, models)
        for story in (serve, refuse, build, incident, rollback):
            story.run(shell)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; run it again to continue", file=sys.stderr)
        return 130
    _look_around(shell)
    return 0


def _set_up(shell: Shell, models: Path) -> None:
    if not CONTEXT:
        shell.step(
            "a Kubernetes cluster of two nodes, one of them with simulated NVIDIA L4s",
            *("hack/cluster/cluster", "up", "--nodes", "2", "--gpus", f"2=l4:{GPUS}"),
        )
        printed = shell.quiet("hack/cluster/cluster env")
        variables = dict(re.findall(r'export (\w+)="?([^:"\n]+)', printed))
        shell.environment["KUBECONFIG"] = variables["KUBECONFIG"]
        shell.environment["PATH"] = f"{variables['PATH']}:{shell.environment['PATH']}"
    shell.step("Enginewright, installed by Helm", "hack/install", CLUSTER)
    shell.step("Prometheus and Alertmanager", "hack/monitoring/install", CLUSTER)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    shell.quiet("kubectl apply --filename -", stdin=json.dumps(namespace))
    with tempfile.TemporaryDirectory() as folder:
        shell.quiet(f"python -m hack.samples.models {models} {folder}")
        shell.environment["NAMESPACE"] = NAMESPACE
        shell.step("model files, in the PersistentVolumeClaim models", "hack/upload-models", folder)


def _look_around(shell: Shell) -> None:
    print(f"\n{'=' * 100}\nDuration of each part, in seconds")
    for title, seconds in shell.times:
        print(f"  {seconds:6.1f}  {title}")
    flag = f" --context {CONTEXT}" if CONTEXT else ""
    print("\nThe cluster keeps running. Look around:")
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
