"""Converts the model to a form that the runtime supports; what works is left unchanged.

There are three reasons for a change: versions that the runtime does not load or that the spec
requests, a lower precision that follows, and nodes that the backend does not support. Changes of
the first kind must succeed or the stage fails; others are kept if they are proven to help and to
change no output.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport, name_nodes
from enginewright_contract.task import PrepareTask, Recipe, ShapeProfile

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import (
    CONVERTED_FOLDER,
    MODEL_FOLDER,
    SAMPLES_FILE,
    Converted,
    Validated,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.scratch import scratch
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import loadable, move_to_folder
from enginewright_runtime.graph.scoped.passes import Keep, PassResult, Situation
from enginewright_runtime.graph.shapes import resolve
from enginewright_runtime.prepare.convert.passes import PASSES, AnyPass, run_pass
from enginewright_runtime.prepare.convert.support import Support, query_support
from enginewright_runtime.prepare.convert.verification import (
    SourceRun,
    check,
    compare,
    form_differs,
    run_source,
)
from enginewright_runtime.prepare.sizes.batch import fit
from enginewright_runtime.prepare.sizes.sizing import find_sizes, find_unsized
from enginewright_runtime.proof.definition import try_definition
from enginewright_runtime.proof.golden_inputs import IntegerRange, Sample, generate, read_samples
from enginewright_runtime.proof.golden_run import INPUTS
from enginewright_runtime.rules import table
from enginewright_runtime.session.arrays import write_arrays

_log: Final = logging.getLogger(__name__)
_PREFIX: Final = "convert-"  # of the names of candidates
_SECONDS: Final = 900.0  # of one child process
_SAMPLES: Final = 2  # number of samples compared
_LARGEST: Final = 64 << 20  # bytes of inputs


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Convert the validated model; leaves `Converted`."""
    validated = Validated.read(paths.work)
    with scratch(paths.work, _PREFIX):
        return _Conversion(task.recipe, paths.work, validated).run()


@dataclass(frozen=True)
class _Candidate:
    path: Path
    done: PassResult


class _Conversion:
    def __init__(self, recipe: Recipe, work: Path, validated: Validated) -> None:
        self._recipe = recipe
        self._work = work
        self._validated = validated
        self._source = work / MODEL_FOLDER / MODEL_NAME
        self._model = graphs.parse(self._source)
        self._current = self._source
        self._shape_nodes = validated.shape_nodes
        self._changes = PassResult().changes
        self._warnings: list[Finding] = []
        self._outputs = work / f"{_PREFIX}outputs"  # of the source, with their inputs
        self._queried: dict[Path, Support | None] = {}
        self._count = 0

    def run(self) -> StageReport:
        for kind in sorted(PASSES, key=lambda pass_: pass_.order):
            self._run_passes(kind)
        if (support := self._support()) is not None:
            self._settle(support)
        return self._leave()

    def _run_passes(self, kind: type[AnyPass]) -> None:
        keep = kind.keep_on(self._recipe.backend)
        if keep is Keep.BETTER and not self._is_improvable():
            return
        about = self._situation(keep)
        if not kind.needs.are_met(about):
            return
        passes = [*kind.to_try(about)]
        del about  # a complete model, whose memory the child process may need
        for pass_ in passes:
            match keep:
                case Keep.MUST:
                    self._change(pass_)
                case Keep.EQUAL:
                    self._improve(pass_)
                case Keep.BETTER if self._is_improvable():
                    self._improve_support(pass_)
                case _:
                    return

    def _situation(self, keep: Keep) -> Situation:
        support = self._support() if keep is Keep.BETTER else None
        return Situation(
            self._recipe,
            graphs.parse(self._current),
            self._sizes(),
            support.operators if support is not None else frozenset(),
        )

    def _leave(self) -> StageReport:
        folder = MODEL_FOLDER
        model = self._model
        if self._changes:
            folder = CONVERTED_FOLDER
            model = graphs.parse(self._current)
            move_to_folder(self._current, self._source.parent, self._work / folder)
        opset = graphs.default_opset(model) or 0
        nodes = sum(1 for _ in graphs.walk_nodes(model))
        Converted(
            folder=folder,
            opset=opset,
            ir_version=model.ir_version,
            nodes=nodes,
            inputs=self._validated.inputs,
            outputs=self._validated.outputs,
            shape_nodes=self._shape_nodes,
            changes=self._changes,
            warnings=tuple(self._warnings),
        ).write(self._work)
        summary = "; ".join(change.message for change in self._changes)
        message = summary or "the model is served unchanged"
        if self._warnings:
            message += f"; {self._warnings[0].cause}"
        return StageReport(
            stage="convert",
            ok=True,
            message=message,
            findings=tuple(self._warnings),
            facts={
                "changes": [change.model_dump(mode="json") for change in self._changes],
                "opset": opset,
                "ir_version": model.ir_version,
                "nodes": nodes,
            },
        )

    def _change(self, rewrite: AnyPass) -> None:
        candidate = self._make(rewrite)
        if candidate is None:
            raise StageFailure(Reason.INTERNAL_ERROR, "a planned conversion changed nothing")
        self._find_sizes(candidate.path)
        if differs := self._differs(candidate):
            raise StageFailure(
                Reason.CONVERSION_FAILED,
                f"the model converted from opset {self._validated.opset} is not equivalent: {differs}",
            )
        self._keep(candidate)

    def _find_sizes(self, path: Path) -> None:
        """Find sizes and default batches: this is the first model that the runtime loads."""
        inputs = self._validated.inputs
        unranked = [
            input_.name for input_ in inputs if not graphs.has_rank(self._model, input_.name)
        ]
        resolved = resolve(inputs, self._recipe.shapes, frozenset(unranked))
        if resolved.unsized:
            samples = self._work / SAMPLES_FILE
            sized = find_sizes(path, self._recipe, inputs, resolved.profiles, unranked, samples)
            for finding in find_unsized(inputs, resolved.unsized, unranked, self._recipe, sized):
                raise StageFailure.of(finding, (finding,))
            self._set_profiles(sized.profiles or self._validated.profiles)
        fitted = fit(path, self._recipe, inputs, self._validated.profiles)
        self._warnings += fitted.findings
        self._set_profiles(fitted.profiles)

    def _set_profiles(self, profiles: tuple[ShapeProfile, ...]) -> None:
        if profiles != self._validated.profiles:
            self._validated = self._validated.model_copy(update={"profiles": profiles})
            self._validated.write(self._work)

    def _improve(self, rewrite: AnyPass) -> None:
        candidate = self._try(rewrite)
        if candidate is None:
            return
        if differs := self._differs(candidate):
            self._warn(f"{candidate.done.changes[0].message}: not kept, since {differs}")
        else:
            self._keep(candidate)

    def _improve_support(self, rewrite: AnyPass) -> None:
        now, candidate = self._support(), self._try(rewrite)
        if candidate is None or now is None:
            return
        then = query_support(
            self._recipe.backend, candidate.path, candidate.done.shape_nodes, self._log_file()
        )
        if then is not None and then.better_than(now) and not self._differs(candidate):
            self._keep(candidate)
            self._queried = {candidate.path: then}

    def _support(self) -> Support | None:
        """Return the backend's support of the current model; None if it cannot be queried here."""
        if self._current not in self._queried:
            backend = self._recipe.backend
            answer = query_support(backend, self._current, self._shape_nodes, self._log_file())
            self._queried = {self._current: answer}
        return self._queried[self._current]

    def _is_improvable(self) -> bool:
        support = self._support()
        return support is not None and not support.complete

    def _settle(self, support: Support) -> None:
        backend = self._recipe.backend
        if support.refused is not None and support.reason is not None:
            nodes = tuple(
                graphs.label(node)
                for node in graphs.walk_nodes(graphs.parse(self._current))
                if node.name and f"'{node.name}'" in support.refused
            )
            cause = support.refused
            if support.reason is Reason.UNSUPPORTED_OPERATOR:
                cause = f"backend {backend} cannot run the model: {cause}"
            raise StageFailure(support.reason, cause, nodes=nodes)
        if support.elsewhere and support.nodes is not None:
            count, elsewhere = len(support.elsewhere), name_nodes(list(support.elsewhere))
            message = (
                f"{count} of {format_count(support.nodes, 'node')} do not run on backend {backend}:"
                f" {elsewhere}"
            )
            self._warnings.append(table.finding(table.NODES_ELSEWHERE, message, support.elsewhere))

    def _sizes(self) -> dict[str, list[int | None]]:
        """Return the dimensions that are fixed for all requests: the server refuses other sizes."""
        declared = {shape.input: shape for shape in self._recipe.shapes}
        return {
            spec.name: [
                low if low == high else None
                for low, high in zip(declared[spec.name].min, declared[spec.name].max, strict=True)
            ]
            if spec.name in declared
            else [size if isinstance(size, int) else None for size in spec.shape]
            for spec in self._validated.inputs
        }

    def _try(self, rewrite: AnyPass) -> _Candidate | None:
        """Make an optional change; None if it changes nothing, or, with a warning, if it fails."""
        try:
            return self._make(rewrite)
        except (StageFailure, SessionError) as error:
            if isinstance(error, StageFailure) and error.reason is Reason.STORAGE_FULL:
                raise  # unrelated to the model, and may be transient
            cause = error.cause if isinstance(error, StageFailure) else plain(str(error))
            self._warn(f"{rewrite.doing} failed, so the model stays unchanged: {cause}")
            return None

    def _make(self, rewrite: AnyPass) -> _Candidate | None:
        _log.info("%s", rewrite.doing)
        self._count += 1
        path = self._current.with_name(f"{_PREFIX}{self._count}.onnx")
        if rewrite.own_weights:
            path = self._work / f"{_PREFIX}{self._count}" / MODEL_NAME
            path.parent.mkdir()
        done = Call(run_pass, rewrite.doing, Limits.of_model(_SECONDS)).run(
            rewrite, self._current, path
        )
        return _Candidate(path, done) if done.changes else None

    def _keep(self, candidate: _Candidate) -> None:
        self._current = candidate.path
        self._shape_nodes = candidate.done.shape_nodes
        self._changes += candidate.done.changes

    def _warn(self, cause: str) -> None:
        self._warnings.append(
            Finding(severity="warning", reason=Reason.CONVERSION_FAILED, cause=cause)
        )

    def _log_file(self) -> Path:
        folder = self._work / f"{_PREFIX}log"
        folder.mkdir(exist_ok=True)
        return folder / "parser.log"

    def _differs(self, candidate: _Candidate) -> str | None:
        changed = graphs.parse(candidate.path)
        if differs := form_differs(self._model, changed, self._recipe):
            return differs
        doing = "comparing the converted model with the source"
        _log.info("%s", doing)
        source_run, models = self._source_run, (candidate.path, self._runnable)
        try:
            if source_run is None:
                return Call(check, doing, Limits.of_model(_SECONDS)).run(*models)
            return Call(compare, doing, Limits.of_model(_SECONDS)).run(
                *models, self._outputs, source_run.varying
            )
        except SessionError as error:
            return f"ONNX Runtime refuses it: {plain(str(error))}"
        except StageFailure as failure:
            if failure.reason.lacks_resources:
                raise  # unrelated to the model, and may be transient
            return failure.cause

    @cached_property
    def _source_run(self) -> SourceRun | None:
        """The run of the source with which all candidates are compared; None if it cannot be run here."""
        self._outputs.mkdir()
        for samples in self._samples():
            ran = self._run_source(samples)
            if ran is None:
                break
            if ran.outputs:
                return ran
        self._warn(
            "the source refuses all generated inputs, or cannot be run here: the converted"
            " model is checked and loaded, but its outputs are not compared"
        )
        return None

    @cached_property
    def _runnable(self) -> Path:
        path = self._source.with_name(f"{_PREFIX}source.onnx")
        return loadable(self._source, path, self._recipe.max_ir_version)

    def _run_source(self, samples: Sequence[Sample]) -> SourceRun | None:
        folder = self._outputs
        write_arrays(folder / INPUTS, {sample.name: sample.inputs for sample in samples})
        doing = "running the source"
        _log.info("%s", doing)
        try:
            return Call(run_source, doing, Limits.of_model(_SECONDS)).run(self._runnable, folder)
        except (SessionError, StageFailure) as error:
            _log.info("ONNX Runtime cannot run the source: %s", plain(str(error)))
        defined = try_definition(self._runnable, samples[0], folder)
        if defined.refused:
            _log.info("ONNX's reference implementation cannot run it: %s", defined.refused)
            return None
        return SourceRun(defined.samples, defined.varying)

    def _samples(self) -> Iterator[list[Sample]]:
        inputs, outputs = self._validated.inputs, self._validated.outputs
        if self._recipe.samples_uri is not None:
            yield read_samples(self._work / SAMPLES_FILE, inputs, outputs)[:_SAMPLES]
            return
        for integer_range in IntegerRange:
            drawn = generate(inputs, self._validated.profiles, integer_range)
            small = [sample for sample in drawn if sample.input_bytes <= _LARGEST]
            yield (small or drawn[:1])[:_SAMPLES]
