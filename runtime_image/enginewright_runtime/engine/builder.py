"""Builds the engines of one model and wraps them, for both libraries.

The library first gets the complete model. If its parser refuses nodes, each part that it supports
becomes an engine and the other nodes remain, if the provider that is to serve them loads such
engines. Each build runs in a separate process, for reproducible bytes and because native code may
crash.
"""

import logging
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from enginewright_contract.engines import whole_only
from enginewright_contract.layers import LAYERS_NAME
from enginewright_contract.manifest import EngineInfo, EngineProfile, Manifest, Partition
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, name_nodes
from enginewright_contract.task import EngineRecipe, ShapeProfile
from onnx import ModelProto

from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import MODEL_FOLDER
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.nvml_use import DeviceMeter
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.engine.culprit import SEARCHED, CulpritSearch
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import Part, TensorProfile, TensorType
from enginewright_runtime.graph.shapes import CORNERS, missing, resolve
from enginewright_runtime.prepare.convert.passes import Expand, run_pass
from enginewright_runtime.prepare.convert.planning import operators_with_bodies
from enginewright_runtime.proof.promise import coverage
from enginewright_runtime.session.extensions.libraries import files_of, of_model
from enginewright_runtime.session.extensions.verification import run_isolated
from enginewright_runtime.tensorrt import context, diagnosis, layers, native, tensors
from enginewright_runtime.tensorrt.attempts import EngineBuilds, file_name, target_name
from enginewright_runtime.tensorrt.flavor import Flavor, find
from enginewright_runtime.tensorrt.partition import partition
from enginewright_runtime.tensorrt.progress import report_progress
from enginewright_runtime.tensorrt.results import BuildResult
from enginewright_runtime.tensorrt.target import memory, target

_log: Final = logging.getLogger(__name__)
BUILD_LOG: Final = "build.log"
_MODEL_ENGINE: Final = "model"  # the engine of the complete model
# of a process that analyses a model; a build may take all of the Job's time
_SECONDS: Final = 900.0
_MIN_NODES: Final = 3  # an engine of fewer compute nodes costs more in copies than it gains
_MIN_SHARE: Final = 0.2  # unless they take this share of the time
_MAX_NODES_LISTED: Final = 100  # nodes in a finding
# failures that expanding operators may fix
_REFUSALS: Final = frozenset({Reason.BUILD_FAILED, Reason.UNSUPPORTED_OPERATOR})
# failures of one part of a model after which the other parts are still built
_PARTIAL: Final = frozenset(
    {
        Reason.BUILD_FAILED,
        Reason.BACKEND_CRASHED,
        Reason.PRECISION_UNSUPPORTED,
        Reason.UNSUPPORTED_OPERATOR,
        Reason.SHAPE_PROFILE_MISSING,
        Reason.SHAPE_PROFILE_INVALID,
    }
)


@dataclass(frozen=True)
class BuildRequest:
    """A build's inputs and its files."""

    manifest: Manifest  # of the prepared model
    prepared: Path  # its artefact
    recipe: EngineRecipe
    out: Path  # a folder for this build only
    progress: Path  # the progress file
    timing_cache: Path  # kernels' timings, if there are any; those of this build are added


@dataclass(frozen=True)
class BuildOutput:
    """The result of a build; files are below `BuildRequest.out`."""

    engine: EngineInfo
    files: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Engine:
    context: context.Context
    path: Path
    result: BuildResult


def build(request: BuildRequest) -> BuildOutput:
    """Build a model's engines; raises StageFailure."""
    return _Build(request).run()


class _Build:
    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._recipe = request.recipe
        self._flavor: Flavor = find(request.recipe.backend)
        self._capability = target(self._flavor, request.recipe)
        self._folder = request.out / MODEL_FOLDER
        self._log = request.out / BUILD_LOG
        self._source = request.prepared / request.manifest.model
        self._libraries = of_model(self._source)
        self._model: ModelProto = graphs.parse(self._source)
        self._profiles = _profiles(request.manifest, self._model)
        self._attempts = EngineBuilds(
            flavor=self._flavor,
            recipe=request.recipe,
            capability=self._capability,
            prepared=self._model,
            source=self._source,
            folder=self._folder,
            log=self._log,
            progress=request.progress,
            timing_cache=request.timing_cache,
            plugins=self._libraries.plugins,
            limits=memory(request.recipe),
        )
        self._findings: list[Finding] = []

    def run(self) -> BuildOutput:
        shutil.rmtree(self._request.out, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._log.touch()
        for path in self._libraries.plugins:
            run_isolated(  # each in a separate process: a crash there does not affect the build
                path,
                native.load_plugins,
                backend=self._flavor.backend,
                version=self._recipe.backend_version,
                plugins=[path],
                log=self._log,
            )
        began = time.monotonic()
        types: dict[str, TensorType] = {}
        complete = context.without_passed(self._model)
        answer = self._attempts.build(complete, _MODEL_ENGINE, self._sizes(), (0, 90))
        if not answer.built:
            answer = self._build_expanded(answer)
        if answer.built:
            about = context.whole(self._model, _MODEL_ENGINE, file_name(_MODEL_ENGINE))
            engines = [_Engine(about, self._folder / about.file, answer)]
        else:
            why = diagnosis.failure(answer, self._about())
            if answer.parsed:
                raise self._name_culprit(why)
            if why.reason not in _PARTIAL or not answer.parser:
                raise why
            if limit := whole_only(self._recipe.backend):
                raise diagnosis.not_in_parts(why, limit)
            _log.info("%s does not support the complete model: %s", self._flavor.title, why.cause)
            types = self._types(why)
            engines = self._parts(types, why)
        seconds = time.monotonic() - began
        report_progress(self._request.progress, 95, "Wrapping the engines")
        names = self._wrap(engines, types)
        info = self._describe(engines, seconds)
        self._report_layers(engines)
        return BuildOutput(
            info,
            (
                *(f"{MODEL_FOLDER}/{name}" for name in names),
                *(f"{MODEL_FOLDER}/{engine.context.file}" for engine in engines),
                *self._extensions(),
                BUILD_LOG,
                LAYERS_NAME,
            ),
            tuple(self._findings),
        )

    def _build_expanded(self, refused: BuildResult) -> BuildResult:
        """Build again with refused operators replaced by their bodies; return `refused` if that fails."""
        why = diagnosis.failure(refused, self._about())
        operators = self._operators_to_expand(refused) if why.reason in _REFUSALS else []
        if not operators:
            return refused
        _log.info("building again with the bodies of %s: %s", ", ".join(operators), why.cause)
        path = self._source.with_name(".expanded.onnx")
        try:
            expand = Expand(operators=tuple(operators))
            changed = Call(run_pass, expand.doing, Limits.of_model(_SECONDS)).run(
                expand, self._source, path
            )
            if not changed.changes:
                return refused
            nodes = changed.changes[0].nodes
            expanded = context.without_passed(graphs.parse(path))
            answer = self._attempts.build(expanded, _MODEL_ENGINE, self._sizes(), (45, 90))
        except StageFailure as failure:
            _log.info("%s", failure.message)
            return refused
        finally:
            path.unlink(missing_ok=True)
        if not answer.built:
            return refused
        self._findings.append(
            Finding(
                severity="warning",
                reason=Reason.UNSUPPORTED_OPERATOR,
                cause=f"{self._flavor.title} has no kernel for {name_nodes(list(nodes))}:"
                " built from the operators in its ONNX function body",
                nodes=nodes,
                node_count=len(nodes),
            )
        )
        return answer

    def _operators_to_expand(self, answer: BuildResult) -> list[str]:
        """Return the operators to expand: those that the parser refuses, or that errors name.

        The library may build the body of an operator for which it has no kernel: TensorRT-RTX 1.7
        parses an Attention of any size, but builds only some. Empty if the parser refuses an
        operator without a body.
        """
        bodied = operators_with_bodies(self._model)
        unparsed = {error.operator for error in answer.parser}
        if not unparsed <= bodied:
            return []
        errors = "\n".join(answer.errors)
        named = {item for item in bodied if re.search(rf"\b{re.escape(item)}\b", errors)}
        return sorted(unparsed | named)

    def _report_layers(self, engines: Sequence[_Engine]) -> None:
        kernels: dict[str, list[str]] = {}
        for engine in engines:
            if self._recipe.ahead_of_time:
                break
            try:
                inspected = Call(native.inspect, "inspecting the engine", Limits(_SECONDS)).run(
                    backend=self._flavor.backend,
                    version=self._recipe.backend_version,
                    engine=engine.path,
                    log=self._log,
                    plugins=self._libraries.plugins,
                )
            except StageFailure as failure:
                # the engine is built: the next stage checks whether it runs
                _log.warning("the engine's kernels are not known: %s", failure.message)
                break
            kernels[engine.path.name] = layers.kernels(inspected)
        library = f"{self._flavor.title} {self._recipe.backend_version}"
        paths = [engine.path for engine in engines]
        layers.write(self._request.out / LAYERS_NAME, library, paths, kernels)

    def _extensions(self) -> list[str]:
        """Copy the model's libraries into the engine's artefact, which is self-contained."""
        files = files_of(self._source)
        for name, path in files.items():
            target = self._request.out / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        return list(files)

    def _name_culprit(self, why: StageFailure) -> StageFailure:
        """Return the failure of a parsed model with the node that it comes from, if the library names none."""
        if why.reason not in SEARCHED or why.nodes:
            return why
        search = CulpritSearch(
            context.without_passed(self._model),
            self._types(why),
            self._attempts,
            self._sizes(),
            lambda answer, part: diagnosis.failure(answer, self._about(part)),
        )
        label = search.find(why.reason)
        return why if label is None else diagnosis.add_culprit(why, label)

    def _types(self, why: StageFailure) -> dict[str, TensorType]:
        """Return the types of all tensors, without which no part can be extracted."""
        try:
            doing = "reading the types of the model's tensors"
            call = Call(tensors.types, doing, Limits.of_model(_SECONDS))
            return call.run(self._source)
        except SessionError as error:
            _log.warning("the model cannot be split into parts: %s", plain(str(error)))
            raise why from error

    def _parts(self, types: Mapping[str, TensorType], why: StageFailure) -> list[_Engine]:
        report_progress(self._request.progress, 5, "Looking for parts")
        doing = f"asking {self._flavor.title} which nodes it supports"
        limits = replace(memory(self._recipe), seconds=_SECONDS)
        supported = Call(partition, doing, limits).run(
            backend=self._flavor.backend,
            version=self._recipe.backend_version,
            model=self._source,
            types=types,
            log=self._log,
            plugins=self._libraries.plugins,
        )
        if supported.left_out:
            self._findings.append(self._report_unbounded(supported.left_out))
        refused = diagnosis.describe_unsupported(supported.errors, self._about())
        cutter = graph.Cutter(self._model, types)
        parts = [
            part
            for nodes in supported.parts
            if self._is_worth_an_engine(nodes) and (part := cutter.part(nodes))
        ]
        if not parts:
            raise refused if why.reason is Reason.UNSUPPORTED_OPERATOR and refused.nodes else why
        sizes = self._inner_sizes(parts)
        engines: list[_Engine] = []
        failures: list[StageFailure] = []
        for index, part in enumerate(parts):
            span = (10 + 80 * index / len(parts), 10 + 80 * (index + 1) / len(parts))
            try:
                engines.append(self._part(part, f"part-{index}", sizes, span))
            except StageFailure as failure:
                if failure.reason not in _PARTIAL:
                    raise
                failures.append(failure)
                self._findings.append(
                    Finding(
                        severity="warning",
                        reason=failure.reason,
                        cause=f"no engine is built for part {index} of the model: {failure.cause}",
                    )
                )
        if not engines:
            raise failures[0]
        return self._acyclic(engines, types)

    def _report_unbounded(self, indices: Sequence[int]) -> Finding:
        labels = [name for at in indices for name in graph.labels(self._model.graph.node[at])]
        return Finding(
            severity="warning",
            reason=Reason.SHAPE_PROFILE_MISSING,
            cause=f"not in an engine: {name_nodes(labels)}, because {self._flavor.title} needs bounds of"
            " their inputs, whose sizes depend on values",
            remedy="export the model with a constant number of what is selected, such as by TopK",
            nodes=tuple(labels[:_MAX_NODES_LISTED]),
            node_count=len(labels),
        )

    def _part(
        self,
        part: Part,
        name: str,
        sizes: Mapping[str, TensorProfile],
        span: tuple[float, float],
    ) -> _Engine:
        profiles = [sizes[input_] for input_ in part.inputs]
        answer = self._attempts.build(part.model, name, profiles, span)
        if not answer.built:
            raise diagnosis.failure(answer, self._about(part))
        nodes = tuple(part.origins)
        about = context.Context(name, file_name(name), nodes, part.inputs, part.outputs)
        return _Engine(about, self._folder / about.file, answer)

    def _is_worth_an_engine(self, nodes: Sequence[int]) -> bool:
        labels = [name for index in nodes for name in graph.labels(self._model.graph.node[index])]
        _, count, share = coverage(labels, self._request.manifest)
        return count >= _MIN_NODES or (share or 0.0) >= _MIN_SHARE

    def _inner_sizes(self, parts: Sequence[Part]) -> dict[str, TensorProfile]:
        input_profiles = {profile.name: profile for profile in self._sizes()}
        names = sorted({name for part in parts for name in part.inputs} - input_profiles.keys())
        if not names:
            return input_profiles
        corners = [
            {profile.input: getattr(profile, corner) for profile in self._profiles}
            for corner in CORNERS
        ]
        try:
            doing = "running the model to find the sizes of its tensors"
            inner_profiles = Call(tensors.sizes, doing, Limits.of_model(_SECONDS)).run(
                model=self._source,
                golden=self._request.prepared / self._request.manifest.golden_inputs,
                names=names,
                corners=corners,
            )
        except SessionError as error:
            raise StageFailure(
                Reason.SHAPE_PROFILE_INVALID,
                f"the model fails with the sizes of its shape profiles: {plain(str(error))}",
            ) from error
        return input_profiles | {profile.name: profile for profile in inner_profiles}

    def _acyclic(self, engines: list[_Engine], types: Mapping[str, TensorType]) -> list[_Engine]:
        kept = sorted(engines, key=lambda engine: len(engine.context.nodes))
        while len(kept) > 1 and self._compose(kept, types) is None:
            kept[0].path.unlink()
            kept = kept[1:]
        return sorted(kept, key=lambda engine: engine.context.nodes)

    def _compose(
        self, engines: Sequence[_Engine], types: Mapping[str, TensorType]
    ) -> ModelProto | None:
        contexts = [engine.context for engine in engines]
        version, capability = self._recipe.backend_version, self._capability or ""
        nodes = [context.node(item, self._flavor, version, capability) for item in contexts]
        return context.compose(self._model, contexts, nodes, types)

    def _wrap(self, engines: Sequence[_Engine], types: Mapping[str, TensorType]) -> list[str]:
        composed = self._compose(engines, types)
        if composed is None:
            raise StageFailure(
                Reason.INTERNAL_ERROR, "the engine and the nodes around it form a cycle"
            )
        return context.save(composed, self._source.parent, self._folder)

    def _describe(self, engines: Sequence[_Engine], seconds: float) -> EngineInfo:
        nodes = self._model.graph.node
        inside = {index for engine in engines for index in engine.context.nodes}
        outside = [
            name
            for index, node in enumerate(nodes)
            if index not in inside
            for name in graph.labels(node)
        ]
        total, elsewhere, share = coverage(outside, self._request.manifest)
        if elsewhere:
            self._findings.insert(0, self._report_outside(outside, elsewhere, total))
        largest = max(engines, key=lambda engine: engine.path.stat().st_size)
        content = file_sha256(largest.path)
        return EngineInfo(
            recipe=self._recipe,
            prepared_key=self._request.manifest.key,
            file=f"{MODEL_FOLDER}/{largest.context.file}",
            sha256=content.sha256,
            size_bytes=content.size_bytes,
            compute_capabilities=(self._capability,) if self._capability else (),
            partitions=tuple(
                Partition(
                    context_node=engine.context.name,
                    nodes=tuple(
                        name
                        for index in engine.context.nodes
                        for name in graph.labels(nodes[index])
                    ),
                )
                for engine in engines
            ),
            profiles=(self._describe_profile(engines),),
            nodes_total=total,
            nodes_accelerated=total - elsewhere,
            compute_share_elsewhere=share,
            workspace_bytes=max(engine.result.workspace_bytes or 0 for engine in engines),
            build_seconds=round(seconds, 3),
            peak_memory_bytes=max(engine.result.peak_memory_bytes or 0 for engine in engines),
        )

    def _describe_profile(self, engines: Sequence[_Engine]) -> EngineProfile:
        # an engine has values only for inputs whose values are sizes
        valued = {name for engine in engines for name in engine.result.shape_inputs}
        no_values = {"low": None, "high": None}
        return EngineProfile(
            inputs=tuple(
                profile if profile.input in valued else profile.model_copy(update=no_values)
                for profile in self._profiles
            )
        )

    def _report_outside(self, outside: Sequence[str], elsewhere: int, total: int) -> Finding:
        shape_nodes = self._request.manifest.shape_nodes
        names = [
            name
            for name in outside
            if name not in shape_nodes and not name.endswith(f"({graph.CONSTANT})")
        ]
        return Finding(
            severity="warning",
            reason=Reason.UNSUPPORTED_OPERATOR,
            cause=f"not in the engine: {elsewhere} of {format_count(total, 'compute node')},"
            f" {name_nodes(names)}",
            nodes=tuple(names[:_MAX_NODES_LISTED]),
            node_count=len(names),
        )

    def _sizes(self) -> list[TensorProfile]:
        return [
            TensorProfile(profile.input, profile.min, profile.opt, profile.max, _values(profile))
            for profile in self._profiles
        ]

    def _about(self, part: Part | None = None) -> diagnosis.Circumstances:
        nodes = part.model.graph.node if part else self._model.graph.node
        return diagnosis.Circumstances(
            title=self._flavor.title,
            target=target_name(self._capability),
            label=partial(diagnosis.label_node, nodes),
            operations={node.name: graphs.label(node) for node in nodes if node.name},
            inputs=tuple(
                f"{profile.input} {list(profile.opt)}"
                for profile, spec in zip(self._profiles, self._request.manifest.inputs, strict=True)
                if any(not isinstance(size, int) for size in spec.shape)
            ),
            workspace_bytes=self._recipe.workspace_bytes,
            free_bytes=_read_free_bytes(),
        )


def _read_free_bytes() -> int | None:
    """Return the free bytes of the device: a build's process has ended, and what it used is free again."""
    meter = DeviceMeter.open()
    use = meter.read() if meter else None
    return use.size - use.used if use else None


def _profiles(manifest: Manifest, model: ModelProto) -> tuple[ShapeProfile, ...]:
    """Return sizes of every input: those that `validate` found, else resolved in the same way."""
    if manifest.profiles:
        return manifest.profiles
    unranked = frozenset(
        spec.name for spec in manifest.inputs if not graphs.has_rank(model, spec.name)
    )
    resolved = resolve(manifest.inputs, manifest.recipe.shapes, unranked)
    if resolved.unsized:
        raise StageFailure.of(missing(manifest.inputs, resolved.unsized, tuple(unranked)))
    for finding in resolved.findings:
        raise StageFailure.of(finding)
    return resolved.profiles


def _values(profile: ShapeProfile) -> tuple[tuple[int, ...], ...] | None:
    if profile.low is None or profile.high is None or len(profile.opt) > 1:
        return None
    count = profile.opt[0] if profile.opt else 1
    return tuple((int(value),) * count for value in (profile.low, profile.high, profile.high))
