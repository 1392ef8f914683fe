"""Judges lies and variants with Polygraphy's comparator, in its own environment: `python polygraphy_judge.py FOLDER`.

The folder has what `bench.truth.peer` writes; verdicts go to `verdicts.json` in it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from polygraphy.comparator import CompareFunc
from polygraphy.comparator.struct import IterationResult
from polygraphy.logger import G_LOGGER

from bench.truth.ladder import search_rung
from bench.truth.lies import Lie, tell

Array = NDArray[Any]
_DEFAULT: Final = 1e-5  # rtol and atol of CompareFunc.simple


def judge(output: str, want: Sequence[Array], have: Sequence[Array]) -> int:
    """Return the first rung at which all samples pass."""
    pairs = [
        (
            IterationResult({output: other}, runner_name="judged"),
            IterationResult({output: one}, runner_name="source"),
        )
        for one, other in zip(want, have, strict=True)
    ]

    def agrees(factor: float) -> bool:
        tolerance = _DEFAULT * factor
        compare = CompareFunc.simple(rtol=tolerance, atol=tolerance)
        return all(bool(compare(one, other)[output]) for one, other in pairs)

    return search_rung(agrees)


def main() -> None:
    """Judge everything in the folder."""
    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    folder = Path(sys.argv[1])
    right = _read(folder / "right.npz")
    verdicts: dict[str, Any] = {"lies": [], "variants": {}}
    for fields in json.loads((folder / "lies.json").read_text()):
        lie = Lie(**fields)
        wrong = tell(lie, right[lie.output])
        verdicts["lies"].append(judge(lie.output, right[lie.output], wrong or ()))
    for path in sorted(folder.glob("variant-*.npz")):
        verdicts["variants"][path.stem] = {
            output: judge(output, right[output], have) for output, have in _read(path).items()
        }
    (folder / "verdicts.json").write_text(json.dumps(verdicts))


def _read(path: Path) -> dict[str, list[Array]]:
    outputs: dict[str, list[Array]] = {}
    with np.load(path) as arrays:
        for key in sorted(arrays.files, key=lambda name: int(name.partition("/")[0])):
            outputs.setdefault(key.partition("/")[2], []).append(arrays[key])
    return outputs


if __name__ == "__main__":
    main()
