"""Has comparators that need packages of their own judge what was told, in their environments."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_runtime.session.arrays import write_arrays
from numpy.typing import NDArray

from bench.environments import Environments
from bench.truth.comparators import POLYGRAPHY
from bench.truth.lies import Lie

Array = NDArray[Any]
Samples = Mapping[str, Sequence[Array]]  # outputs, by sample

PROGRAMS: Final = {POLYGRAPHY: "polygraphy"}  # environments, by comparator
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PEERS: Final = Path(__file__).with_name("peers")
ENVIRONMENTS: Final = Environments(_PEERS, _REPOSITORY / "build/bench/truth/peers")
_LIMIT_SECONDS: Final = 1200


@dataclass(frozen=True)
class PeerVerdicts:
    """The rung of each lie, and of each artefact's worst output."""

    lies: Sequence[int]
    variants: Mapping[int, int]


def judge(
    folder: Path, right: Samples, told: Sequence[Lie], honest: Mapping[int, Samples]
) -> dict[str, PeerVerdicts]:
    """Return the verdicts of all peers that are installed."""
    asked = folder / "asked"
    shutil.rmtree(asked, ignore_errors=True)
    asked.mkdir()
    _write(asked / "right.npz", right)
    (asked / "lies.json").write_text(json.dumps([asdict(lie) for lie in told]))
    for index, samples in honest.items():
        _write(asked / f"variant-{index}.npz", samples)
    verdicts = {
        name: _ask(asked, environment)
        for name, environment in PROGRAMS.items()
        if ENVIRONMENTS.python_of(environment).exists()
    }
    shutil.rmtree(asked)
    return verdicts


def _write(path: Path, samples: Samples) -> None:
    groups: dict[str, dict[str, Array]] = {}
    for output, items in samples.items():
        for number, array in enumerate(items):
            groups.setdefault(str(number), {})[output] = array
    write_arrays(path, groups)


def _ask(asked: Path, environment: str) -> PeerVerdicts:
    subprocess.run(
        [
            str(ENVIRONMENTS.python_of(environment)),
            str(_PEERS / f"{environment}_judge.py"),
            str(asked),
        ],
        check=True,
        timeout=_LIMIT_SECONDS,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    document = json.loads((asked / "verdicts.json").read_text())
    return PeerVerdicts(
        document["lies"],
        {
            int(name.rpartition("-")[2]): max(rungs.values())
            for name, rungs in document["variants"].items()
        },
    )
