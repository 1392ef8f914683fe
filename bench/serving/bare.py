"""CPU time of bare `session.run`, the floor below every server: a program, for memory and affinity."""

import json
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from bench.serving import cases

_ROUNDS: Final = 5
_ROUND_SECONDS: Final = 0.15


def measure(folder: Path) -> dict[str, float]:
    """Return µs of one run with the case's request, and with `cases.BATCH` of them as a batch."""
    case = cases.read(folder)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])

    def best(batch: int) -> float:
        feeds = {case.input: np.repeat(case.x, batch, axis=0)}
        session.run(None, feeds)
        began = time.process_time()
        session.run(None, feeds)
        runs = max(1, round(_ROUND_SECONDS / max(1e-6, time.process_time() - began)))
        times = []
        for _ in range(_ROUNDS):
            began = time.process_time()
            for _ in range(runs):
                session.run(None, feeds)
            times.append((time.process_time() - began) / runs)
        return min(times) * 1e6

    return {"one_us": best(1), "batch_us": best(cases.BATCH)}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
