"""Maps stages to their code. Each is imported on its own: a stage needs no other's libraries."""
# ruff: noqa: PLC0415 - each stage's libraries are imported with it

from collections.abc import Callable
from typing import Final

from enginewright.contract.report import StageReport
from enginewright.contract.task import EngineTask, PrepareTask

from enginewright_runtime.core.handoff import Unchanged
from enginewright_runtime.core.paths import Paths

_ENDS: Final = ("fetch", "publish")  # find sources unchanged, and report what was published before


def prepare_stage(name: str) -> Callable[[PrepareTask, Paths], StageReport]:
    """Return the function that runs a stage of a prepare Job."""
    match name:
        case "fetch":
            from enginewright_runtime.prepare.fetch.stage import run
        case "validate":
            from enginewright_runtime.prepare.validate.stage import run
        case "convert":
            from enginewright_runtime.prepare.convert.stage import run
        case "golden":
            from enginewright_runtime.prepare.golden.stage import run
        case "quantize":
            from enginewright_runtime.prepare.quantize.stage import run
        case "publish":
            from enginewright_runtime.prepare.publish import run
        case _:
            raise ValueError(f"there is no stage {name}")
    return run if name in _ENDS else _unless_unchanged(name, run)


def _unless_unchanged(
    name: str, run: Callable[[PrepareTask, Paths], StageReport]
) -> Callable[[PrepareTask, Paths], StageReport]:
    """Return a stage that does nothing where a refresh has found the sources unchanged."""

    def run_or_not(task: PrepareTask, paths: Paths) -> StageReport:
        if Unchanged.find(paths.work) is None:
            return run(task, paths)
        return StageReport(stage=name, ok=True, message="the sources are unchanged")

    return run_or_not


def engine_stage(name: str) -> Callable[[EngineTask, Paths], StageReport]:
    """Return the function that runs a stage of an engine Job."""
    match name:
        case "lookup":
            from enginewright_runtime.engine.lookup import run
        case "build":
            from enginewright_runtime.engine.build import run
        case "verify":
            from enginewright_runtime.engine.verify import run
        case "benchmark":
            from enginewright_runtime.engine.benchmark import run
        case "publish-engine":
            from enginewright_runtime.engine.publish_engine import run
        case _:
            raise ValueError(f"there is no stage {name}")
    return run
