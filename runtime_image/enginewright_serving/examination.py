"""Loads a prepared model as a serving pod does and reports its placement and latency.

For use without a cluster; in pods the server and the sidecar report the same. It runs and reports like a stage:
`python -m enginewright_serving.examination`.
"""

import os
import sys
from pathlib import Path
from typing import Final

from enginewright_contract.facts import ExamineFacts, RequestAnswer
from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import MANIFEST_NAME, Manifest
from enginewright_contract.report import StageReport
from enginewright_contract.task import EXAMINE_STAGE, TASK_VARIABLE, ServeTask
from enginewright_runtime.core import logs
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.proof.latency.comparing import measure
from enginewright_runtime.proof.promise import judge
from enginewright_runtime.runner import end_on_sigterm, run_stage

from enginewright_serving.server import one_request

_TIMED: Final = 0.5  # seconds of runs, and of the warm-up
_ANSWER_SECONDS: Final = 600.0


def run(task: ServeTask, paths: Paths, request: Path | None) -> StageReport:
    """Load, run and measure a prepared model of the store, and answer the request in a file, if there is one.

    The report's facts are `ExamineFacts`. Raises StageFailure: BackendCrashed, OutOfMemory or Timeout;
    UnsupportedOperator if the backend rejects the model, which the stages would have reported.
    """
    artifact = paths.store / "prepared" / task.prepared_key
    manifest = Manifest.model_validate_json((artifact / MANIFEST_NAME).read_bytes())
    measured = measure(
        artifact / manifest.model,
        task.backend,
        artifact / manifest.golden_inputs,
        seconds=_TIMED,
        usual_only=True,
    )
    placement = judge(measured.placement, measured.provider, manifest, task.promise)
    return StageReport(
        stage=EXAMINE_STAGE,
        ok=True,
        message=f"ran on backend {task.backend}",
        facts=ExamineFacts(
            placement=placement,
            elsewhere=measured.placement.elsewhere,
            latency=measured.usual,
            answer=_answer(task, artifact, request) if request else None,
        ).model_dump(mode="json"),
    )


def _answer(task: ServeTask, artifact: Path, request: Path) -> RequestAnswer:
    limits = Limits.of_model(_ANSWER_SECONDS, on_device=task.backend in DEVICE_BACKENDS)
    doing = f"answering the request on backend {task.backend}"
    return Call(one_request.answer, doing, limits).run(task, artifact, request)


def main(request: str | None = None) -> int:
    """Run as a stage with the file of a request, if there is one; return its exit code."""
    end_on_sigterm()
    logs.configure(EXAMINE_STAGE)
    paths = Paths.from_environment()
    task = ServeTask.model_validate_json(os.environ[TASK_VARIABLE])
    return run_stage(
        EXAMINE_STAGE,
        lambda: run(task, paths, Path(request) if request else None),
        paths,
        task.revision,
    )


if __name__ == "__main__":
    sys.exit(main())
