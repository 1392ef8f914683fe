"""Time and peak memory of each stage, compared with the bare tools.

Absolute values depend on the machine. Goals on every machine: preparation takes a small multiple of
one check, one load and one run; a build takes at most 10% more than the bare builder, plus a
constant start; a model of 2.7 GB needs at most 12 GiB.
"""

import argparse
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "bench")]

import graphs
from bare import BUILD, CHECK, Cost, run
from enginewright_contract.keys import engine_key
from enginewright_contract.report import read_termination_message
from enginewright_contract.task import ENGINE_STAGES, PREPARE_STAGES, EngineRecipe, EngineTask
from enginewright_runtime.engine.handoff import EngineBuilt

from tests.support.preparing import Workplace

MEMORY_LIMIT: Final = 12 * 2**30  # bytes, of every stage
BUILD_LIMIT: Final = 1.10  # times the bare builder
START_SECONDS: Final = 0.5  # of a separate process with its imports, independent of the model
CAPABILITY: Final = "8.9"
ROUNDS: Final = 3  # of builds, alternating between the bare builder and ours


def stage(place: Workplace, name: str, task: str) -> Cost:
    """Run one stage like its container."""
    environment = {
        "ENGINEWRIGHT_ROOT": str(place.root),
        "ENGINEWRIGHT_TASK": task,
        "TMPDIR": str(place.root / "tmp"),
    }
    os.sync()  # so that this stage does not wait for writes of the previous one
    return run([sys.executable, "-m", "enginewright_runtime", "stage", name], environment)


def measure(name: str, *, engines: bool) -> bool:
    """Print the cost of every stage; return whether all are within their limits."""
    with tempfile.TemporaryDirectory(prefix="enginewright-bench-") as folder:
        place = Workplace(Path(folder), fresh=True)
        path = graphs.write(name, place.root / "source")
        size = sum(item.stat().st_size for item in path.parent.iterdir())
        print(f"\n{name}, {size / 1e6:.0f} MB")
        bare = run([sys.executable, "-c", CHECK, str(path)])
        task = place.task("pvc://models/model.onnx")
        costs = {
            prepare_stage: stage(place, prepare_stage, task.to_json())
            for prepare_stage in PREPARE_STAGES
        }
        for key, cost in {"bare check, load and runs": bare, **costs}.items():
            print(f"  {key:28} {cost.seconds:7.2f} s  {cost.peak / 2**20:8.0f} MiB")
        total = sum(cost.seconds for cost in costs.values())
        print(f"  {'all stages':28} {total:7.2f} s  = {total / bare.seconds:.1f} x bare")
        is_within = all(cost.peak <= MEMORY_LIMIT for cost in costs.values())
        if engines:
            is_within &= build(place, path)
    return is_within


def build(place: Workplace, path: Path) -> bool:
    """Build an engine ahead of time, alternating between the bare builder and ours."""
    report = read_termination_message((place.root / "dev/termination-log").read_text())
    if report is None or report.published is None:
        raise RuntimeError("publish has not reported the key of the prepared model")
    prepared = report.published.key
    recipe = EngineRecipe(
        backend="tensorrt-rtx",
        backend_version=importlib.import_module("tensorrt_rtx_bindings").__version__,
        ort_version="1.31.1",
        accelerator_class="l4",
        compute_capability=CAPABILITY,
        ahead_of_time=True,
    )
    key = engine_key(prepared, recipe)
    task = EngineTask(job="bench", engine_key=key, prepared_key=prepared, recipe=recipe).to_json()
    bare, ours, builds = [], [], []
    for _ in range(ROUNDS):
        os.sync()
        # as the stage copies the model from the store before the build
        copy = place.root / "copy"
        shutil.copytree(path.parent, copy)
        bare.append(run([sys.executable, "-c", BUILD, str(copy / path.name), str(copy / "plan")]))
        shutil.rmtree(copy)
        ours.append(stage(place, ENGINE_STAGES[0], task))
        engine = EngineBuilt.read(place.root / "work").engine
        if engine is None:
            raise RuntimeError("the stage has built no engine")
        builds.append(engine.build_seconds)
    least = min(item.seconds for item in bare)
    peak = max(item.peak for item in ours)
    print(
        f"  {'bare builder':28} {least:7.2f} s  {max(item.peak for item in bare) / 2**20:8.0f} MiB"
    )
    for name, seconds in (
        ("our builder", min(builds)),
        ("build (whole stage)", min(item.seconds for item in ours)),
    ):
        print(
            f"  {name:28} {seconds:7.2f} s  {peak / 2**20:8.0f} MiB"
            f"  = {seconds / least:.2f} x bare, {seconds - least:+.2f} s"
        )
    return peak <= MEMORY_LIMIT and min(builds) <= BUILD_LIMIT * least + START_SECONDS


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run only models whose name contains this")
    chosen = parser.parse_args().only or ""
    engines = importlib.util.find_spec("tensorrt_rtx_bindings") is not None
    within = [measure(name, engines=engines) for name in graphs.NAMES if chosen in name]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
