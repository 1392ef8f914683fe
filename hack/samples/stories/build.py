"""(c) An engine is built without its GPU, and gets no traffic where it cannot run."""

from hack.samples.shell import DemoError, Shell

CLASS = "l4"
AHEAD = """\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: magika-l4                   # the same file
spec:
  source:
    uri: pvc://models/magika.onnx
  accelerators: [{class: l4}]       # for NVIDIA L4: compute capability 8.9
"""
CLASS_MANIFEST = """\
apiVersion: enginewright.dev/v1alpha1
kind: AcceleratorClass
metadata: {name: l4}                # no node has this GPU: select any node
spec:
  nodeSelector: {kubernetes.io/os: linux}
  computeCapability: "8.9"
  aheadOfTime: true
  backends: [tensorrt-rtx, cuda]
"""
PATCH = '{"spec":{"aheadOfTime":true,"backends":["tensorrt-rtx","cuda"]}}'


def run(shell: Shell) -> None:
    """Run the story."""
    with shell.chapter(
        "(c) The same model, compiled for a GPU by TensorRT-RTX: no traffic where it cannot run"
    ):
        _class(shell)
        shell.show("kubectl apply --filename -", stdin=AHEAD)
        shell.show("kubectl wait --for=condition=EnginesReady im/magika-l4 --timeout=180s")
        print("\nA real engine, built ahead of time by a Job without a GPU:")
        shell.show("kubectl get inferenceengines --output wide")
        reason = 'jsonpath={.status.conditions[?(@.type=="EnginesReady")].message}'
        shell.show(f"kubectl get im magika-l4 --output '{reason}'")
        shell.until(
            "the reason DriverMissing",
            lambda: shell.condition("magika-l4", "Ready").get("reason") == "DriverMissing",
        )
        print(
            "\nThis machine has no NVIDIA driver, so the engine gets no traffic, with the reason:"
        )
        shell.show("kubectl get im magika-l4")
        shell.show("kubectl get pods --selector enginewright.dev/model=magika-l4")
        message = shell.show(
            f"kubectl get im magika-l4 --output '{reason.replace('EnginesReady', 'Ready')}'"
        )
        if "libcuda.so.1" not in message:
            raise DemoError("the condition does not name the driver's library")


def _class(shell: Shell) -> None:
    """Create the GPUs' class, or set the one proposed from nodes' labels to build ahead of time."""
    classes = shell.quiet("kubectl get acceleratorclasses --output name")
    if f"/{CLASS}\n" not in classes:
        shell.show("kubectl apply --filename -", stdin=CLASS_MANIFEST)
        return
    print("\nThe operator has found a node with GPUs and created a class for them:")
    shell.show("kubectl get acceleratorclasses")
    print("\nAn administrator lets engines be built ahead of time, without allocating a GPU:")
    shell.show(f"kubectl patch acceleratorclass {CLASS} --type merge --patch '{PATCH}'")
