"""Brings the model into the form that the runtime takes; what works is left as it is."""

from enginewright.contract.report import StageReport
from enginewright.contract.task import PrepareTask

from enginewright_runtime.handoff import Converted, Validated
from enginewright_runtime.paths import Paths


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Convert what `validate` found valid; leaves `Converted`."""
    del task
    validated = Validated.pick_up(paths.work)
    Converted(
        opset=validated.opset,
        ir_version=validated.ir_version,
        nodes=validated.nodes,
        inputs=validated.inputs,
        outputs=validated.outputs,
        shape_nodes=validated.shape_nodes,
    ).leave(paths.work)
    return StageReport(stage="convert", ok=True, message="the model is served as it is")
