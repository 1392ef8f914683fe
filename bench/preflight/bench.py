"""What `enginewright preflight` costs beside the bare tools that people call by hand instead.

By hand: onnx.checker, one ONNX Runtime session and three runs, and for a GPU the bare builder. The
ratio counts; seconds belong to one machine. The first run takes nothing from the cache, the second one
takes all from it. The seconds that docs/preflight.md aims at are those of two idle cores.
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

ROUNDS: Final = 3  # by turns; the least counts
# targets -> what is done by hand
TARGETS: Final = {"cpu": (CHECK,), "sm89": (CHECK, BUILD), "cpu,sm89": (CHECK, BUILD)}
# model -> seconds that a first run for all targets is to take; None: as long as it takes
MODELS: Final = {"small": 5.0, "transformer": 15.0, "ResNet-50": None}
AGAIN: Final = 0.5  # seconds that a run is to take which finds its result in the cache


def by_hand(scripts: tuple[str, ...], model: Path, plan: Path) -> Cost:
    """Run the bare tools one after the other."""
    costs = [run([sys.executable, "-c", each, str(model), str(plan)]) for each in scripts]
    return Cost(sum(each.seconds for each in costs), max(each.peak for each in costs))


def preflight(model: Path, target: str, *options: str) -> Cost:
    """Run the command."""
    command = [str(Path(sys.executable).parent / "enginewright"), "preflight", str(model)]
    return run([*command, "--target", target, "--quiet", *options])


def main() -> int:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="enginewright-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name, aim in MODELS.items():
            measure(name, graphs.write(name, Path(folder)), Path(folder) / "plan", aim)
    return 0


def measure(name: str, model: Path, plan: Path, aim: float | None) -> None:
    """Print what one model costs for each target, and how that compares with what is aimed at."""
    print(f"\n{name}, {model.stat().st_size / 1e6:.0f} MB")
    for target, scripts in TARGETS.items():
        bare, first, again = [], [], []
        preflight(model, target)  # for those that come again
        for _ in range(ROUNDS):
            bare.append(by_hand(scripts, model, plan))
            first.append(preflight(model, target, "--no-cache"))
            again.append(preflight(model, target))
        least, ours, cached = (min(each.seconds for each in some) for some in (bare, first, again))
        every = target == list(TARGETS)[-1]
        print(
            f"  {target:8} by hand {least:6.2f} s   preflight {ours:6.2f} s  = {ours / least:.1f} x"
            f"{_of(ours, aim) if every else ''}, {max(each.peak for each in first) / 2**20:.0f} MiB"
            f"   again {cached:5.2f} s{_of(cached, AGAIN)}"
        )


def _of(seconds: float, aim: float | None) -> str:
    return "" if aim is None else f" ({seconds / aim:.2f} of {aim:g} s)"


if __name__ == "__main__":
    sys.exit(main())
