"""Results of preflight that have everything in them, for the renderings: real runs have a part each."""

from enginewright_cli.preflight.result import (
    Engine,
    Found,
    Graph,
    ModelFacts,
    OperatorCount,
    Parity,
    PlacedNode,
    PlacedOperator,
    Placement,
    Result,
    TargetResult,
    Weight,
    WeightType,
)
from enginewright_contract.manifest import Change, Latency, OutputParity, TensorSpec

from tests.support.optional import present

HOSTILE = (
    "<script>document.title = 'taken'</script>",
    '"><img src=x onerror="document.title=1">',
    "' onmouseover='alert(1)",
    "</style></title></textarea><iframe src=//192.0.2.1/>",
    "&lt;b&gt; &amp;amp; {{7*7}} ${7*7}",
    "bell\x07 escape\x1b[31m null\x00 line\x85",
    "right\u202eto\u2066left\u200b",
    "lone \udcff surrogate",
    "\uff1cscript\uff1e \u05d0\u05d1\u05d2 \U0001f600",
    "x" * 5000,
)


def partial() -> Result:
    """Return a model that one target runs in part, one completely, and one not at all."""
    labels = [f"/block.{i}/conv (Conv)" for i in range(40)]
    nodes = [
        PlacedNode(label="/nms (NonMaxSuppression)", count=1, elsewhere=1, share=0.3),
        PlacedNode(label="unnamed (Add)", count=4, elsewhere=1, share=0.1),
        *(PlacedNode(label=label, count=1, elsewhere=0, share=0.0125) for label in labels),
    ]
    placement = Placement(
        operators=(
            PlacedOperator(operator="Conv", count=60, elsewhere=0, share=0.6, elsewhere_share=0.0),
            PlacedOperator(
                operator="NonMaxSuppression", count=1, elsewhere=1, share=0.3, elsewhere_share=0.3
            ),
            PlacedOperator(operator="Add", count=4, elsewhere=1, share=0.1, elsewhere_share=0.025),
        ),
        nodes=tuple(nodes),
        shape_nodes=7,
    )
    parity = Parity(
        verdict="pass",
        outputs=(
            OutputParity(
                name="logits",
                compared_with="source",
                max_abs_error=2.5e-4,
                max_rel_error=0.003,
                cosine=0.999999,
                top1_agreement=0.995,
                nan=0,
                inf=0,
            ),
            OutputParity(name="labels", compared_with="expected", nan=0, inf=0),
        ),
    )
    changes = (
        Change(
            kind="opset",
            message="converted opset 11 to 17: 1 node whose operator has a different version there",
            nodes=("/softmax (Softmax)",),
        ),
        Change(kind="precision", message="brought to FP16"),
    )
    engine = TargetResult(
        verdict="warn",
        backend="tensorrt-rtx",
        nodes_total=65,
        nodes_accelerated=63,
        elsewhere=("/nms (NonMaxSuppression)", "unnamed (Add)"),
        compute_share_elsewhere=0.325,
        placement=placement,
        engine_bytes=14_100_000,
        build_seconds=81.5,
        engine=Engine(
            sha256="ab" * 32,
            compute_capabilities=("8.9",),
            partitions=2,
            ahead_of_time=True,
            peak_memory_bytes=4 << 30,
            max_abs_error=1e-3,
            outputs=(OutputParity(name="logits", compared_with="prepared", max_abs_error=1e-3),),
        ),
        precision="FP16",
        changes=changes,
        parity=parity,
        latency=Latency(
            p50=0.0021,
            p90=0.0024,
            p99=0.0031,
            samples=500,
            shapes="opt",
            throughput=1904.8,
            peak_memory_bytes=1_200_000_000,
        ),
        versions={"onnxruntime": "1.31.1", "tensorrt-rtx": "1.7.1.116"},
        prepared_key="1f" * 32,
        engine_key="2e" * 32,
        seconds=92.25,
    )
    cpu = TargetResult(
        verdict="pass",
        backend="cpu",
        nodes_total=65,
        nodes_accelerated=65,
        compute_share_elsewhere=0.0,
        parity=Parity(verdict="pass"),
        latency=Latency(p50=0.0104, p90=0.0124, p99=0.0171, samples=321),
        prepared_key="3d" * 32,
        seconds=21.0,
    )
    failed = TargetResult(
        verdict="fail",
        backend="openvino",
        reason="UnsupportedOperator",
        message="backend openvino cannot run the model",
        seconds=4.5,
    )
    findings = (
        Found(
            severity="error",
            reason="UnsupportedOperator",
            message="backend openvino has no operator for /nms (NonMaxSuppression)",
            remedy="replace the operators when exporting",
            nodes=("/nms (NonMaxSuppression)",),
            node_count=1,
            stage="validate",
            targets=("openvino",),
        ),
        Found(
            severity="error",
            reason="ShapeProfileMissing",
            message="input images has [n, 3, h, w]: only the first dimension may be left open",
            remedy="add to spec, with sizes of yours: shapes: [...]",
            options=("--shapes images=1x3x32x32:1x3x320x320:8x3x640x640",),
            stage="validate",
            targets=("openvino",),
        ),
        Found(
            severity="warning",
            reason="CalibrationTooSmall",
            message="16 samples are few",
            remedy="give 500 samples or more",
            nodes=tuple(labels),
            node_count=140,
            stage="quantize",
            targets=("sm89", "openvino"),
        ),
    )
    graph = Graph(
        producer="pytorch 2.9.1",
        opsets={"": 11, "com.example": 1},
        functions=2,
        operator_types=120,
        operators=(
            OperatorCount(operator="Conv", count=60, weight_bytes=80_000_000),
            *(OperatorCount(operator=f"Kind{i}", count=1) for i in range(20)),
        ),
        weight_types=(
            WeightType(dtype="float32", tensors=120, elements=20_000_000, size_bytes=80_000_000),
        ),
        largest_weights=(
            Weight(name="w0", dtype="float32", shape=(64, 3, 7, 7), size_bytes=37_632),
        ),
        external_bytes=80_000_000,
    )
    return Result(
        verdict="fail",
        source="models/detector.onnx",
        model=ModelFacts(
            digest="cd" * 32,
            ir_version=8,
            opset=11,
            nodes=72,
            inputs=(TensorSpec(name="images", dtype="float32", shape=("n", 3, None, 640)),),
            outputs=(TensorSpec(name="logits", dtype="float32", shape=("n", 80)),),
            size_bytes=80_100_000,
            graph=graph,
        ),
        findings=findings,
        targets={"sm89": engine, "cpu": cpu, "openvino": failed},
        seconds=117.8,
    )


def hostile(text: str) -> Result:
    """Return a result in which every name of the model's is `text`."""
    result = partial()
    model = present(result.model)
    assert model.graph is not None
    label = f"{text} (Conv)"
    placement = Placement(
        operators=(PlacedOperator(operator=text, count=1, elsewhere=1, share=1.0),),
        nodes=(PlacedNode(label=label, count=1, elsewhere=1, share=1.0),),
    )
    graph = model.graph.model_copy(
        update={
            "producer": text,
            "opsets": {text: 1},
            "operators": (OperatorCount(operator=text, count=1),),
            "largest_weights": (Weight(name=text, dtype=text, shape=(1,), size_bytes=1),),
        }
    )
    tensor = TensorSpec(name=text, dtype="float32", shape=(text, None))
    target = result.targets["sm89"].model_copy(
        update={
            "verdict": "fail",
            "reason": "NodeFallback",
            "message": text,
            "placement": placement,
            "elsewhere": (label,),
            "changes": (Change(kind="opset", message=text, nodes=(label,)),),
            "parity": Parity(
                verdict="pass", outputs=(OutputParity(name=text, compared_with="source"),)
            ),
            "versions": {"onnxruntime": text},
        }
    )
    finding = result.findings[0].model_copy(
        update={"message": text, "remedy": text, "options": (text,), "nodes": (label,)}
    )
    return result.model_copy(
        update={
            "source": text,
            "model": model.model_copy(
                update={"graph": graph, "inputs": (tensor,), "outputs": (tensor,)}
            ),
            "findings": (finding.model_copy(update={"targets": ("sm89",)}),),
            "targets": {"sm89": target},
        }
    )
