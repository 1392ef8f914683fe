"""The statistics of a model that Triton's statistics extension defines.

Source: triton-inference-server/server docs/protocol/extension_statistics.md. The counts are those of the
metrics: of the requests of clients over all protocols, since the server's start.

- A request is one inference, whatever its first dimension; likewise `batch_size` is the number of requests of a run.
- Tensors are not copied before and after a run, so `compute_input` and `compute_output` take no time. `success` is
  from the head of a request to its written response.
"""

import time
from typing import Any, Final

from enginewright_contract.task import ServeTask

from enginewright_serving.histogram import DurationHistogram
from enginewright_serving.server.observe.metrics import Metrics

VERSION: Final = "1"  # Triton's are numbers, as which its perf_analyzer reads this; every revision is also this one


def statistics(task: ServeTask, metrics: Metrics) -> dict[str, Any]:
    """Return `$model_stat` of the extension, with durations in nanoseconds."""
    succeeded, failed = metrics.total[2], (metrics.total[4], metrics.total[5])
    runs = metrics.runs.succeeded
    count, seconds = metrics.compute.count, metrics.compute.total
    return {
        "name": task.model,
        "version": VERSION,
        "last_inference": _epoch_milliseconds(metrics.last_answer),
        "inference_count": succeeded.count,
        "execution_count": sum(run for run, _ in runs.values()),
        "inference_stats": {
            "success": _sum(succeeded),
            "fail": _sum(*failed),
            "queue": _sum(metrics.queue),
            "compute_input": _duration(count, 0.0),
            "compute_infer": _duration(count, seconds),
            "compute_output": _duration(count, 0.0),
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(run, 0.0),
                "compute_infer": _duration(run, took),
                "compute_output": _duration(run, 0.0),
            }
            for size, (run, took) in sorted(runs.items())
        ],
        "memory_usage": [],
        "response_stats": {},  # of models with several responses to a request
    }


def _sum(*histograms: DurationHistogram) -> dict[str, int]:
    return _duration(
        sum(histogram.count for histogram in histograms),
        sum(histogram.total for histogram in histograms),
    )


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def _epoch_milliseconds(moment: float) -> int:
    return round((time.time() - (time.monotonic() - moment)) * 1e3) if moment else 0
