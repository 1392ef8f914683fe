"""A namespace's InferenceEngines by name, read when they are asked for.

A model's plan asks for the few that it needs; a namespace may hold hundreds.
"""

from collections.abc import Iterator, Mapping

from typing_extensions import override

from enginewright.api.inference_engine import InferenceEngine
from enginewright.controller.cache import Cache
from enginewright.controller.parse import parsed
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import INFERENCE_ENGINES


class EngineLookup(Mapping[str, InferenceEngine]):
    """What the cache holds now; one that cannot be read counts as missing."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    @override
    def __getitem__(self, name: str) -> InferenceEngine:
        observed = self._cache.get(INFERENCE_ENGINES, self._namespace, name)
        for engine in parsed(InferenceEngine, (observed,) if observed else ()):
            return engine
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return (each["metadata"]["name"] for each in self._here())

    @override
    def __len__(self) -> int:
        return len(self._here())

    def _here(self) -> list[JsonObject]:
        return [
            each
            for each in self._cache.all(INFERENCE_ENGINES)
            if each["metadata"]["namespace"] == self._namespace
        ]
