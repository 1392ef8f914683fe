"""Publishes the prepared model to the store and reports its facts."""

from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import MODEL_NAME, ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.signature import PublishedSignature
from enginewright_contract.task import PrepareTask, Recipe, ShapeProfile

from enginewright_runtime import oci
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import (
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    PROCESSING_FOLDER,
    QUANTIZED_FOLDER,
    SAMPLES_FILE,
    Fetched,
    Golden,
    Quantized,
    Validated,
)
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.value_sizes import find_sized_by_values
from enginewright_runtime.prepare import in_store
from enginewright_runtime.prepare.quantize.saturation import saturable
from enginewright_runtime.prepare.signature import signature_of
from enginewright_runtime.proof.golden_run import EXPECTED, INPUTS, OUTPUTS
from enginewright_runtime.proof.parity.parts import PARTS
from enginewright_runtime.session import processor
from enginewright_runtime.session.base import distribution
from enginewright_runtime.session.extensions import bundled
from enginewright_runtime.session.extensions.libraries import BUNDLED, files_of
from enginewright_runtime.session.processing.chain import connect
from enginewright_runtime.store import Store, credit, open_medium, open_store
from enginewright_runtime.store.clusters import is_shared

_GOLDEN: Final = (f"{GOLDEN_FOLDER}/{INPUTS}", f"{GOLDEN_FOLDER}/{OUTPUTS}")
_EXPECTED: Final = f"{GOLDEN_FOLDER}/{EXPECTED}"
_PARTS: Final = f"{GOLDEN_FOLDER}/{PARTS}"


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Publish the files of the earlier stages, unless the store has equal ones; idempotent."""
    fetched = Fetched.read(paths.work)
    validated = Validated.read(paths.work)
    golden = Golden.read(paths.work)
    quantized = Quantized.read(paths.work)
    data = _data(fetched, paths)
    store = open_store(paths)
    common = in_store.StorePlace(
        _key(store, in_store.keys_of(task, fetched.model_digest, data)),
        in_store.content_of(task, data),
    )
    own_place = in_store.find_own_place(task, fetched.model_digest, data)
    place, aside = common, own_place
    if own_place is not None and _exists(store, own_place.key):
        place, aside = own_place, None

    served = paths.work / quantized.folder
    model = graphs.parse(served / MODEL_NAME)
    saturates: bool | None = None
    if task.recipe.backend not in DEVICE_BACKENDS:
        saturates = saturable(model, served, task.recipe.backend)

    @cache
    def signature() -> PublishedSignature | None:
        own = signature_of(served / MODEL_NAME, validated, task.recipe)
        return connect(validated.steps, own).signature() if own and validated.steps else own

    def describe(at: in_store.StorePlace, files: tuple[ArtifactFile, ...]) -> Manifest:
        return Manifest(
            key=at.key,
            model_digest=fetched.model_digest,
            recipe=task.recipe,
            data=at.content,
            model=f"{MODEL_FOLDER}/{MODEL_NAME}",
            files=files,
            opset=quantized.opset,
            ir_version=quantized.ir_version,
            nodes=quantized.nodes,
            inputs=validated.inputs,
            outputs=validated.outputs,
            signature=signature(),
            golden_inputs=_GOLDEN[0],
            golden_outputs=_GOLDEN[1],
            golden_expected=_EXPECTED if golden.expected else None,
            golden_parts=_PARTS if (paths.work / _PARTS).exists() else None,
            golden_source=golden.source,
            versions=_versions(task.recipe),
            node_costs=quantized.node_costs,
            shape_nodes=quantized.shape_nodes,
            profiles=_profiles(validated, task.recipe),
            source_opset=validated.opset,
            precision=quantized.precision,
            source_precision=golden.source_precision,
            graph_optimization=(
                golden.graph_optimization if quantized.folder != QUANTIZED_FOLDER else None
            ),
            changes=quantized.changes,
            parity=quantized.parity,
            varying=golden.varying,
            sized_by_values=find_sized_by_values(model),
            processor=processor.read(),
            saturable=saturates,
            steps=validated.steps,
        )

    files = {f"{MODEL_FOLDER}/{path.relative_to(served)}": path for path in _files(served)}
    further = (name for name in (_EXPECTED, _PARTS) if (paths.work / name).exists())
    files |= {name: paths.work / name for name in (*_GOLDEN, *further)} | files_of(
        served / MODEL_NAME
    )
    for step in validated.steps:
        folder = f"{PROCESSING_FOLDER}/{step.name}"
        files |= {
            f"{folder}/{path.relative_to(paths.work / folder)}": path
            for path in _files(paths.work / folder)
        }

    def find_aside() -> credit.Aside | None:
        if aside is None or task.cluster is None:
            return None
        shared = is_shared(open_medium(paths), task.cluster)
        return credit.Aside(aside.key, partial(describe, aside)) if shared else None

    manifest, cached = credit.publish(
        store, place.key, files, partial(describe, place), task.pipeline, find_aside
    )
    manifest = manifest.model_copy(update={"signature": manifest.signature or signature()})
    pushed = oci.push(paths, store, manifest)
    state = "the store already had" if cached else "published"
    apart = (
        "" if manifest.key == common.key else f", apart from another cluster's {common.key[:12]}"
    )
    made = in_store.report_prepared(manifest, paths.work / _GOLDEN[1], data, cached=cached)
    return StageReport(
        stage="publish",
        ok=True,
        message=pushed.describe(
            f"{state} prepared model {manifest.key[:12]}, {format_bytes(made.size_bytes)}{apart}"
        ),
        published=pushed.annotate(made),
        facts={"manifest": manifest.model_dump(mode="json")},
    )


def _key(store: Store, keys: tuple[str, ...]) -> str:
    """Return the first key, unless there is an artefact, even a damaged one, under an earlier version's key."""
    return next((earlier for earlier in keys[1:] if _exists(store, earlier)), keys[0])


def _exists(store: Store, key: str) -> bool:
    """Return whether there is an artefact, even a damaged one."""
    try:
        return store.find(key) is not None
    except StageFailure as failure:
        if failure.reason is not Reason.ARTIFACT_CORRUPT:
            raise
        return True


def _data(fetched: Fetched, paths: Paths) -> dict[str, str]:
    data = dict(fetched.steps)
    if fetched.calibration:
        data["calibration"] = fetched.calibration
    if fetched.samples:
        data["samples"] = file_sha256(paths.work / SAMPLES_FILE).sha256
    return data


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _profiles(validated: Validated, recipe: Recipe) -> tuple[ShapeProfile, ...]:
    """Return the profiles without value ranges, where only golden inputs need those."""
    declared = {shape.input for shape in recipe.shapes}
    values = {"low": None, "high": None}
    return tuple(
        profile if profile.input in declared else profile.model_copy(update=values)
        for profile in validated.profiles
    )


def _versions(recipe: Recipe) -> dict[str, str]:
    extensions = any(extension.type == BUNDLED for extension in recipe.extensions)
    return {
        **({bundled.MARK: bundled.version()} if extensions else {}),
        "onnx": metadata.version("onnx"),
        "onnxruntime": metadata.version(distribution()),
        "enginewright": metadata.version("enginewright"),
    }
