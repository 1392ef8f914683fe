"""Finds the node that keeps a parsed model from being built, where the library names none.

Beginnings of the model are built by bisection: of the shortest that fails, the last node is the one.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enginewright_contract.reasons import Reason
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import Part, TensorProfile, TensorType
from enginewright_runtime.graph.scoped.scopes import Scope
from enginewright_runtime.tensorrt import layers
from enginewright_runtime.tensorrt.attempts import EngineBuilds, file_name
from enginewright_runtime.tensorrt.results import BuildResult

_log: Final = logging.getLogger(__name__)
_NAME: Final = "beginning"
_SECONDS: Final = 300.0  # of all builds, after which the node stays unknown
_SPAN: Final = (90.0, 95.0)  # percentages of the progress
# failures of which the library may name no node
SEARCHED: Final = frozenset({Reason.BUILD_FAILED, Reason.PRECISION_UNSUPPORTED})


def bisect(nodes: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> int:
    """Return the last of the shortest beginning of `nodes` that fails, where all of them do."""
    built, failing = 0, len(nodes)
    while failing - built > 1:
        middle = (built + failing) // 2
        if fails(nodes[:middle]):
            failing = middle
        else:
            built = middle
    return nodes[failing - 1]


class _UnknownError(Exception):
    """It cannot be known whether a beginning fails as the model does."""


@dataclass(frozen=True)
class CulpritSearch:
    """The model whose build has failed, and how it is built."""

    model: ModelProto
    types: Mapping[str, TensorType]  # of every tensor
    attempts: EngineBuilds
    profiles: Sequence[TensorProfile]  # of the model's inputs
    diagnose: Callable[[BuildResult, Part], StageFailure]

    def find(self, reason: Reason) -> str | None:
        """Return the label of the node for which the build fails with a `reason`, if that can be known."""
        order = Scope(self.model.graph).order() or []
        nodes = graph.computing(self.model, order)
        if not nodes:
            return None
        _log.info(
            "building beginnings of the model to find the node that keeps it from being built"
        )
        end = time.monotonic() + _SECONDS
        cutter = graph.Cutter(self.model, self.types)

        def fails(beginning: Sequence[int]) -> bool:
            part = cutter.part(beginning)  # None if it depends on no input: folded by the parser
            return part is not None and self._fails(part, reason, end - time.monotonic())

        try:
            culprit = bisect(nodes, fails)
        except _UnknownError as error:
            _log.info("the node stays unknown: %s", error)
            return None
        return graphs.label(self.model.graph.node[culprit])

    def _fails(self, part: Part, reason: Reason, seconds: float) -> bool:
        profiles = {profile.name: profile for profile in self.profiles}
        if seconds <= 0 or not profiles.keys() >= {*part.inputs}:
            raise _UnknownError("it takes too long, or sizes are unknown")
        attempts = replace(
            self.attempts, limits=replace(self.attempts.limits, seconds=seconds, work_seconds=None)
        )
        engine = attempts.folder / file_name(_NAME)
        try:
            answer = attempts.build(
                part.model, _NAME, [profiles[name] for name in part.inputs], _SPAN
            )
        except StageFailure as failure:
            raise _UnknownError(failure.cause) from failure
        finally:
            for path in (engine, layers.file_for(engine)):
                path.unlink(missing_ok=True)
        if answer.built:
            return False
        why = self.diagnose(answer, part)
        if why.reason is not reason:
            raise _UnknownError(f"a beginning fails for another reason: {why.cause}")
        return True
