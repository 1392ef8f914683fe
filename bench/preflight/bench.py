"""What `enginewright preflight` costs beside the bare tools that people call by hand instead.

By hand: onnx.checker, one ONNX Runtime session and three runs, and for a GPU the bare builder. The
ratio counts; seconds belong to one machine. Nothing is taken from the cache.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

BENCH: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "pipeline")]

import graphs  # noqa: E402 - needs the path above
from bare import BUILD, CHECK, Cost, run  # noqa: E402 - needs the path above

ROUNDS: Final = 3  # by turns; the least counts
TARGETS: Final = {"cpu": (CHECK,), "sm89": (CHECK, BUILD)}  # target -> what is done by hand


def by_hand(scripts: tuple[str, ...], model: Path, plan: Path) -> Cost:
    """Run the bare tools one after the other."""
    costs = [run([sys.executable, "-c", each, str(model), str(plan)]) for each in scripts]
    return Cost(sum(each.seconds for each in costs), max(each.peak for each in costs))


def preflight(model: Path, target: str) -> Cost:
    """Run the command."""
    command = [str(Path(sys.executable).parent / "enginewright"), "preflight", str(model)]
    return run([*command, "--target", target, "--no-cache", "--quiet"])


def main() -> int:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="enginewright-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in ("small", "ResNet-50"):
            measure(name, graphs.write(name, Path(folder)), Path(folder) / "plan")
    return 0


def measure(name: str, model: Path, plan: Path) -> None:
    """Print what one model costs for each target."""
    print(f"\n{name}, {model.stat().st_size / 1e6:.0f} MB")
    for target, scripts in TARGETS.items():
        bare, ours = [], []
        for _ in range(ROUNDS):
            bare.append(by_hand(scripts, model, plan))
            ours.append(preflight(model, target))
        least, most = min(each.seconds for each in bare), min(each.seconds for each in ours)
        print(
            f"  {target:6} by hand {least:6.2f} s   preflight {most:6.2f} s  = {most / least:.1f} x,"
            f" {max(each.peak for each in ours) / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    sys.exit(main())
