"""(b) A model newer than the runtime: converted if the result can be verified, otherwise rejected."""

from hack.samples.shell import DemoError, Shell

TOO_NEW = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: too-new                     # exported with an opset that the runtime does not support
spec:
  source:
    uri: pvc://models/newer-opset.onnx
"""


EXPANDED = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: attention                   # with the Attention operator of opset 23
spec:
  source:
    uri: pvc://models/attention.onnx
"""


def run(shell: Shell) -> None:
    """Run the story."""
    with shell.chapter(
        "(b) Operators that the backend does not support: expanded, verified, served without fallback"
    ):
        shell.show("kubectl apply --filename -", stdin=EXPANDED)
        shell.show("kubectl wait --for=condition=Ready im/attention --timeout=180s")
        changes = shell.show(
            "kubectl get im attention --output jsonpath='{.status.prepared.changes}'"
        )
        if "Attention" not in changes:
            raise DemoError("the expansion of Attention is not shown")
        shell.show("kubectl wait --for=condition=PlacementVerified im/attention --timeout=60s")
        shell.show("kubectl get im attention")
    with shell.chapter(
        "(b) A model that the runtime cannot run: no traffic, and a condition with the reason"
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
                raise DemoError(f"the condition does not name {expected}")
        shell.show("kubectl events --for im/too-new")
