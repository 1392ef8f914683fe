"""A server with false answers: what each changes between a correct server and its clients."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.support.serving import DATATYPES
from tests.support.sidecar import Proxy

Tensors = dict[str, NDArray[Any]]
_LENGTH: Final = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Lie:
    """One false answer, and the consequence it must have."""

    name: str
    begin: Callable[[Proxy], None]
    seconds: float  # after which readiness is gone or the alert's expression holds, at the defaults
    alert: str | None = None  # else the pod loses readiness
    reason: str | None = None  # of the check that finds it, where it fails


def honest(proxy: Proxy) -> None:
    """Remove every false answer."""
    proxy.delay, proxy.saying = 0.0, None
    proxy.refusing = {}
    proxy.execution = proxy.metrics = proxy.inference = _keep


def _keep(said: Any) -> Any:
    return said


def outputs(change: Callable[[Tensors], Tensors]) -> Callable[[Proxy], None]:
    """Return a change of the outputs that keeps the answer well-formed."""

    def begin(proxy: Proxy) -> None:
        proxy.inference = lambda answer: _rewrite(answer, change)

    return begin


def change_each_output(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Proxy], None]:
    """Return a change of each output."""
    return outputs(lambda tensors: {name: change(array) for name, array in tensors.items()})


def execution(placement: Mapping[str, Any] | None = None, **fields: Any) -> Callable[[Proxy], None]:
    """Return a change of the report on how the model runs, or on the placement of its nodes."""

    def begin(proxy: Proxy) -> None:
        proxy.execution = lambda said: (
            said | fields | {"placement": said["placement"] | (placement or {})}
        )

    return begin


def answers(counts: Mapping[int, int]) -> Callable[[Proxy], None]:
    """Return metrics that count so many more answers of each code at every scrape."""

    def begin(proxy: Proxy) -> None:
        sums = dict.fromkeys(counts, 0)

        def change(text: str) -> str:
            kept = [
                line for line in text.splitlines() if "enginewright_requests_total{" not in line
            ]
            for code, count in counts.items():
                sums[code] += count
                labels = f'model="m",revision="r1",code="{code}"'
                kept.append(f"enginewright_requests_total{{{labels}}} {sums[code]}")
            return "\n".join(kept) + "\n"

        proxy.metrics = change

    return begin


def _rewrite(
    answer: tuple[dict[str, str], bytes], change: Callable[[Tensors], Tensors]
) -> tuple[dict[str, str], bytes]:
    """Decode a binary answer, change its tensors and encode it again."""
    headers, body = answer
    length = int(headers[_LENGTH])
    document = json.loads(body[:length])
    at = length
    tensors: Tensors = {}
    for item in document["outputs"]:
        size = item["parameters"]["binary_data_size"]
        flat = np.frombuffer(body[at : at + size], np.float32)
        tensors[item["name"]] = flat.reshape(item["shape"])
        at += size
    changed = change(tensors)
    document["outputs"] = [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype.name],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in changed.items()
    ]
    head = json.dumps(document).encode()
    return headers | {_LENGTH: str(len(head))}, head + b"".join(
        array.tobytes() for array in changed.values()
    )
