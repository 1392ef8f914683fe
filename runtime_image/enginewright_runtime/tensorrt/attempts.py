"""Builds one engine, in repeated processes until a workspace size fits."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.task import EngineRecipe
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.graph.raw.graphs import copy_of
from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import TensorProfile
from enginewright_runtime.tensorrt import diagnosis, layers, native, workspace
from enginewright_runtime.tensorrt.flavor import Flavor
from enginewright_runtime.tensorrt.results import BuildResult

_log: Final = logging.getLogger(__name__)


def file_name(name: str) -> str:
    """Return the name of an engine's file."""
    return f"{name}.engine"


def target_name(capability: str | None) -> str:
    """Return the target of an engine, for a message."""
    return f"compute capability {capability}" if capability else "the local device"


@dataclass(frozen=True)
class EngineBuilds:
    """The settings with which all engines of one artefact are built."""

    flavor: Flavor
    recipe: EngineRecipe
    capability: str | None  # to build for, unless that is the local device's
    prepared: ModelProto  # the prepared model
    source: Path  # its file
    folder: Path  # where engines go
    log: Path  # the build log
    progress: Path  # the progress file
    timing_cache: Path
    plugins: tuple[Path, ...]  # libraries to load before the model is read
    limits: Limits  # of each process

    def build(
        self,
        model: ModelProto,
        name: str,
        profiles: Sequence[TensorProfile],
        span: tuple[float, float],
    ) -> BuildResult:
        """Build the engine `name` of the prepared model, or of a part of it, beside its external data.

        `span` are the percentages of the complete build at which this one starts and ends.
        """
        names = graph.contradicts(model, profiles)
        if model is self.prepared and not names:
            return self._attempt(self.source, name, profiles, span)
        changed = copy_of(model)
        graph.forget(changed, names)
        path = self.source.with_name(f".{name}.onnx")  # beside the external data
        path.write_bytes(changed.SerializeToString())
        try:
            return self._attempt(path, name, profiles, span)
        finally:
            path.unlink()

    def _attempt(
        self,
        model: Path,
        name: str,
        profiles: Sequence[TensorProfile],
        span: tuple[float, float],
    ) -> BuildResult:
        space: workspace.Workspace | None = None
        while True:
            limit = space.limit if space else self.recipe.workspace_bytes
            answer = self._once(model, name, profiles, span, limit)
            if answer.built or not workspace.is_out_of_memory(answer.errors):
                return answer
            space = (space or workspace.Workspace.first(answer.workspace_bytes or 0)).after(
                answer.errors
            )
            if space is None:
                return answer
            _log.info(
                "not enough device memory: trying a workspace of %s", format_bytes(space.limit)
            )

    def _once(
        self,
        model: Path,
        name: str,
        profiles: Sequence[TensorProfile],
        span: tuple[float, float],
        workspace_bytes: int | None,
    ) -> BuildResult:
        engine = self.folder / file_name(name)
        doing = f"building the engine with {self.flavor.title}"
        if self.plugins:
            doing += " and the plug-ins of spec.extensions"
        _log.info("%s for %s", doing, target_name(self.capability))
        try:
            return Call(native.build, doing, self.limits).run(
                backend=self.flavor.backend,
                version=self.recipe.backend_version,
                model=model,
                engine=engine,
                log=self.log,
                progress=self.progress,
                span=span,
                profiles=profiles,
                compute_capability=self.capability if self.flavor.targets else None,
                workspace_bytes=workspace_bytes,
                optimization_level=self.recipe.optimization_level,
                timing_cache=self.timing_cache,
                layers=layers.file_for(engine),
                plugins=self.plugins,
            )
        except StageFailure as failure:
            if failure.reason is Reason.OUT_OF_MEMORY:
                raise diagnosis.out_of_memory(doing) from failure
            raise
