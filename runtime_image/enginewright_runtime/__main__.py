"""The command of the runtime image: `enginewright-runtime`."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn, TypeVar

from enginewright_contract.base import Message
from enginewright_contract.collection import COLLECT_STAGE, CollectTask
from enginewright_contract.reasons import Reason
from enginewright_contract.task import (
    ENGINE_STAGES,
    FETCH_ARTIFACT,
    LOOKUP_STAGE,
    PARSE_STAGE,
    PREPARE_STAGES,
    ROOT_VARIABLE,
    TASK_VARIABLE,
    EngineTask,
    PrepareTask,
    ServeTask,
    task_text,
)
from pydantic import ValidationError

from enginewright_runtime.core import logs
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.reporting import end_with, write_termination_message
from enginewright_runtime.runner import end_on_sigterm, run_stage
from enginewright_runtime.stages import engine_stage, prepare_stage

_BUILDING: Final = (LOOKUP_STAGE, *ENGINE_STAGES, PARSE_STAGE)  # stages with an engine's task
_STAGES: Final = (*PREPARE_STAGES, *_BUILDING, COLLECT_STAGE)

_Task = TypeVar("_Task", bound=Message)


def command() -> NoReturn:
    """Run the command line and end the process without finalizing the interpreter.

    Finalizing crashes while threads of the object stores' client still release Python objects.
    """
    try:
        code = main()
    except SystemExit as end:  # wrong usage, or SIGTERM
        code = end.code if isinstance(end.code, int) else 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    paths = Paths.from_environment()
    logs.configure(options.command)
    if options.command == "serve":
        from enginewright_serving.server.main import run  # noqa: PLC0415 - stages need no server

        return _with_task("serve", ServeTask, paths, run)
    if options.command == "sidecar":
        from enginewright_serving.sidecar.main import run as watch  # noqa: PLC0415 - likewise

        return _with_task("sidecar", ServeTask, paths, watch)
    end_on_sigterm()
    if options.command == "probe":
        return _probe(paths)
    if options.command == FETCH_ARTIFACT:
        return _with_task(
            FETCH_ARTIFACT, ServeTask, paths, lambda task: _fetch_artifact(task, paths)
        )
    return _run_stages(options.stages, paths)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="enginewright-runtime",
        description=f"Runs in Job and serving pods. The task is JSON in {TASK_VARIABLE};"
        f" {ROOT_VARIABLE} is a prefix of every path, for use outside a pod.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("probe", help="print what this image contains")
    stage = commands.add_parser("stage", help="run stages of a Job")
    stage.add_argument(
        "stages",
        nargs="+",
        choices=_STAGES,
        metavar="STAGE",
        help="one in a pod; outside a pod several, which run until one fails: "
        + ", ".join(_STAGES),
    )
    commands.add_parser(
        FETCH_ARTIFACT, help="copy a prepared model or an engine from the store, checked"
    )
    commands.add_parser("serve", help="serve the fetched model")
    commands.add_parser("sidecar", help="continuously verify what the server serves")
    return parser


def _with_task(stage: str, kind: type[_Task], paths: Paths, act: Callable[[_Task], int]) -> int:
    try:
        task = kind.model_validate_json(task_text(os.environ))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        message = f"{TASK_VARIABLE} is not a valid {kind.__name__}: {where}: {first['msg']}"
        return end_with(stage, StageFailure(Reason.INTERNAL_ERROR, message), paths)
    return act(task)


def _run_stages(stages: Sequence[str], paths: Paths) -> int:
    """Run stages of one Job until one fails; return the last one's exit code."""
    code = 0
    for stage in stages:
        logs.configure(stage)
        if stage == COLLECT_STAGE:
            code = _with_task(stage, CollectTask, paths, partial(_collect, paths))
        elif stage in _BUILDING:
            code = _with_task(stage, EngineTask, paths, partial(_build, stage, paths))
        else:
            code = _with_task(stage, PrepareTask, paths, partial(_prepare, stage, paths))
        if code:
            break
    return code


# each stage is imported inside the boundary that reports failures


def _prepare(stage: str, paths: Paths, task: PrepareTask) -> int:
    return run_stage(stage, lambda: prepare_stage(stage)(task, paths), paths, task.job)


def _build(stage: str, paths: Paths, task: EngineTask) -> int:
    return run_stage(stage, lambda: engine_stage(stage)(task, paths), paths, task.job)


def _collect(paths: Paths, task: CollectTask) -> int:
    from enginewright_runtime.store import collection  # noqa: PLC0415 - as the stages

    return run_stage(COLLECT_STAGE, lambda: collection.run(task, paths), paths, task.job)


def _fetch_artifact(task: ServeTask, paths: Paths) -> int:
    from enginewright_serving import fetch_artifact  # noqa: PLC0415 - as the stages

    return run_stage(FETCH_ARTIFACT, lambda: fetch_artifact.run(task, paths), paths, None)


def _probe(paths: Paths) -> int:
    from enginewright_runtime.probe import probe  # noqa: PLC0415 - loads native code

    try:
        facts = probe().to_json()
    except StageFailure as failure:
        return end_with("probe", failure, paths)
    print(facts)
    write_termination_message(paths, facts)
    return 0


if __name__ == "__main__":
    command()
