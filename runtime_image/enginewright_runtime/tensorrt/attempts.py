"""Builds one engine, in as many processes as it takes to find a workspace that fits."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.reasons import Reason
from enginewright.contract.task import EngineRecipe
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Limits, run_isolated
from enginewright_runtime.core.logs import in_words
from enginewright_runtime.graph import parts as graph
from enginewright_runtime.tensorrt import layers, words, workspace
from enginewright_runtime.tensorrt.flavor import Flavor

_log: Final = logging.getLogger(__name__)
_NATIVE: Final = "enginewright_runtime.tensorrt.native"


def file_name(name: str) -> str:
    """Return the name of an engine's file."""
    return f"{name}.engine"


def target_words(capability: str | None) -> str:
    """Return what an engine is built for, for a message."""
    return f"compute capability {capability}" if capability else "the device at hand"


@dataclass(frozen=True)
class Attempts:
    """What all engines of one artefact are built with."""

    flavor: Flavor
    recipe: EngineRecipe
    capability: str | None  # to build for; None: that of the device at hand
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
        profiles: Sequence[Mapping[str, Any]],
        span: tuple[float, float],
    ) -> words.Answer:
        """Build the engine `name` of the prepared model, or of a part of it.

        Args:
            model: its external data lies beside the prepared model.
            name: of the engine's file, without suffix.
            profiles: as `native.build` takes them.
            span: per cent of the whole build that this one begins and ends with.

        Raises:
            StageFailure: as `run_isolated`; what the library refuses is in the answer.
        """
        by_input = {profile["input"]: profile for profile in profiles}
        names = graph.contradicts(model, by_input)
        if model is self.prepared and not names:
            return self._attempt(self.source, name, profiles, span)
        changed = ModelProto()
        changed.CopyFrom(model)
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
        profiles: Sequence[Mapping[str, Any]],
        span: tuple[float, float],
    ) -> words.Answer:
        """Build, again with another workspace as long as that may help."""
        space: workspace.Workspace | None = None
        while True:
            limit = space.limit if space else self.recipe.workspace_bytes
            answer = self._once(model, name, profiles, span, limit)
            if answer.built or not workspace.wants_memory(answer.errors):
                return answer
            space = (space or workspace.Workspace.first(answer.workspace_bytes or 0)).after(
                answer.errors
            )
            if space is None:
                return answer
            _log.info("not enough device memory: trying a workspace of %s", in_words(space.limit))

    def _once(
        self,
        model: Path,
        name: str,
        profiles: Sequence[Mapping[str, Any]],
        span: tuple[float, float],
        workspace_bytes: int | None,
    ) -> words.Answer:
        engine = self.folder / file_name(name)
        doing = f"building the engine with {self.flavor.title}"
        if self.plugins:
            doing += " and the plug-ins of spec.extensions"
        _log.info("%s for %s", doing, target_words(self.capability))
        try:
            answer = run_isolated(
                f"{_NATIVE}:build",
                doing,
                limits=self.limits,
                backend=self.flavor.backend,
                version=self.recipe.backend_version,
                model=str(model),
                engine=str(engine),
                log=str(self.log),
                progress=str(self.progress),
                span=span,
                profiles=profiles,
                compute_capability=self.capability if self.flavor.targets else None,
                workspace_bytes=workspace_bytes,
                timing_cache=str(self.timing_cache),
                layers=str(layers.beside(engine)),
                plugins=[str(path) for path in self.plugins],
            )
        except StageFailure as failure:
            if failure.reason is Reason.OUT_OF_MEMORY:
                raise words.out_of_memory(doing) from failure
            raise
        return words.Answer.parse(answer)
