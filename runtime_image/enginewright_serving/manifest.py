"""Reads the manifest of the artefact that a pod serves, and the request shapes that it admits."""

from pathlib import Path

from enginewright_contract.manifest import MANIFEST_NAME, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from pydantic import ValidationError


def read_manifest(task: ServeTask, artifact: Path) -> Manifest:
    """Return the manifest of the task's artefact; raise StageFailure: ArtifactMissing or ArtifactCorrupt."""
    path = artifact / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StageFailure(
            Reason.ARTIFACT_MISSING, f"{path} does not exist: no artefact was fetched"
        ) from None
    except (OSError, ValidationError) as error:
        raise StageFailure(Reason.ARTIFACT_CORRUPT, f"cannot read {path}: {error}") from error
    _compare_keys("artefact", manifest.key, task.engine_key or task.prepared_key)
    if task.engine_key is not None:
        if manifest.engine is None:
            raise StageFailure(Reason.ARTIFACT_CORRUPT, "the artefact holds no engine")
        _compare_keys("engine's prepared model", manifest.engine.prepared_key, task.prepared_key)
    return manifest


def list_profiles(manifest: Manifest) -> tuple[tuple[ShapeProfile, ...], ...]:
    """Return the profiles, of which a request must fit one; a profile may leave inputs unconstrained.

    An engine accepts the shapes it was built for, other backends the declared shapes; the declared range of an
    input's values is for golden inputs, not for requests.
    """
    engine = manifest.engine
    if engine is not None and engine.profiles:
        return tuple(profile.inputs for profile in engine.profiles)
    anything = {"low": None, "high": None}
    return (tuple(shape.model_copy(update=anything) for shape in manifest.recipe.shapes),)


def _compare_keys(what: str, key: str, expected: str) -> None:
    if key != expected:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT,
            f"the {what} has key {key[:12]}, the task asks for {expected[:12]}",
        )
