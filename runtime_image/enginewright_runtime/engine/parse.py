"""Asks TensorRT's parser about a prepared model where no device builds its engine: a stage of preflight."""

import shutil
from functools import partial
from typing import Final

from enginewright_contract.engines import whole_only, why_unusable
from enginewright_contract.facts import ParseFacts
from enginewright_contract.precisions import MIN_CAPABILITY, version
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import PARSE_STAGE, EngineTask
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine.handoff import PREPARED_FOLDER
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.promise import coverage
from enginewright_runtime.session.extensions.libraries import of_model
from enginewright_runtime.store import open_store
from enginewright_runtime.tensorrt import diagnosis, native
from enginewright_runtime.tensorrt.attempts import target_name
from enginewright_runtime.tensorrt.flavor import find
from enginewright_runtime.tensorrt.results import BuildResult

_SECONDS: Final = 900.0
_LOG: Final = "parse.log"


def run(task: EngineTask, paths: Paths) -> StageReport:
    """Parse the prepared model with the library that would build its engine; raises StageFailure with its refusal."""
    recipe, flavor = task.recipe, find(task.recipe.backend)
    if unusable := why_unusable(recipe.backend, recipe.compute_capability):
        raise StageFailure(Reason.ENGINE_INCOMPATIBLE, unusable, remedy="choose another target")
    prepared = paths.work / PREPARED_FOLDER
    shutil.rmtree(prepared, ignore_errors=True)
    manifest = open_store(paths).read(task.prepared_key, prepared)
    source = prepared / manifest.model
    library = f"{flavor.title} {recipe.backend_version}"
    allowed = Limits(seconds=_SECONDS, memory_bytes=memory_of_child())
    answer = Call(native.parse, f"parsing the model with {library}", allowed).run(
        backend=recipe.backend,
        version=recipe.backend_version,
        model=source,
        log=paths.work / _LOG,
        plugins=of_model(source).plugins,
    )
    if not answer.parsed:
        raise _refusal(answer, task, graphs.parse(source))
    _refuse_types(answer, recipe.compute_capability, library)
    total, _, _ = coverage((), manifest)
    return StageReport(
        stage=PARSE_STAGE,
        ok=True,
        message=f"{library} parses all {format_count(total, 'compute node')}",
        facts=ParseFacts(library=library, nodes_total=total).model_dump(mode="json"),
    )


def _refusal(answer: BuildResult, task: EngineTask, model: ModelProto) -> StageFailure:
    recipe = task.recipe
    about = diagnosis.Circumstances(
        title=f"{find(recipe.backend).title} {recipe.backend_version}",
        target=target_name(recipe.compute_capability),
        label=partial(diagnosis.label_node, model.graph.node),
    )
    why = diagnosis.failure(answer, about)
    limit = whole_only(recipe.backend)
    if limit and why.reason is Reason.UNSUPPORTED_OPERATOR:
        return diagnosis.not_in_parts(why, limit)
    return why


def _refuse_types(answer: BuildResult, capability: str | None, library: str) -> None:
    """Refuse element types that the device has no kernels for: the parser takes them for any."""
    if capability is None:
        return
    for precision in ("BF16", "FP8"):
        least = MIN_CAPABILITY[precision]
        if precision in answer.types and version(capability) < least:
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED,
                f"{library} parses the model, whose tensors are {precision}, which needs compute capability"
                f" {least[0]}.{least[1]} or higher, and the target has {capability}",
            )
