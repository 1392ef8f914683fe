"""Time of `enginewright preflight`, compared with the bare tools called manually.

Manually: onnx.checker, one ONNX Runtime session and three runs, and for a GPU the bare builder. The
ratio matters; absolute times depend on the machine. The first run uses no cache, the second one takes
everything from it. The goals in docs/preflight.md are for two idle cores.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

BENCH: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "pipeline")]

import graphs
from bare import BUILD, CHECK, Cost, run

ROUNDS: Final = 3  # alternating; the minimum counts
# targets -> bare tools
TARGETS: Final = {"cpu": (CHECK,), "sm89": (CHECK, BUILD), "cpu,sm89": (CHECK, BUILD)}
# model -> goal, if it has one, in seconds of a first run for all targets
MODELS: Final = {"small": 5.0, "transformer": 15.0, "ResNet-50": None}
CACHED_SECONDS: Final = 0.5  # goal of a run whose result is in the cache


def run_bare(scripts: tuple[str, ...], model: Path, plan: Path) -> Cost:
    """Run the bare tools one after the other."""
    costs = [run([sys.executable, "-c", script, str(model), str(plan)]) for script in scripts]
    return Cost(sum(cost.seconds for cost in costs), max(cost.peak for cost in costs))


def preflight(model: Path, target: str, *options: str) -> Cost:
    """Run the command."""
    command = [str(Path(sys.executable).parent / "enginewright"), "preflight", str(model)]
    return run([*command, "--target", target, "--quiet", *options])


def main() -> int:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="enginewright-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name, goal in MODELS.items():
            measure(name, graphs.write(name, Path(folder)), Path(folder) / "plan", goal)
    return 0


def measure(name: str, model: Path, plan: Path, goal: float | None) -> None:
    """Print the times of one model for each target, and their ratio to the goals."""
    print(f"\n{name}, {model.stat().st_size / 1e6:.0f} MB")
    for target, scripts in TARGETS.items():
        bare, first, cached = [], [], []
        preflight(model, target)  # fills the cache
        for _ in range(ROUNDS):
            bare.append(run_bare(scripts, model, plan))
            first.append(preflight(model, target, "--no-cache"))
            cached.append(preflight(model, target))
        tools, ours, again = (min(item.seconds for item in some) for some in (bare, first, cached))
        is_all = target == list(TARGETS)[-1]
        print(
            f"  {target:8} bare {tools:6.2f} s   preflight {ours:6.2f} s  = {ours / tools:.1f} x"
            f"{_of(ours, goal) if is_all else ''}, {max(item.peak for item in first) / 2**20:.0f} MiB"
            f"   cached {again:5.2f} s{_of(again, CACHED_SECONDS)}"
        )


def _of(seconds: float, goal: float | None) -> str:
    return "" if goal is None else f" ({seconds / goal:.2f} of {goal:g} s)"


if __name__ == "__main__":
    sys.exit(main())
