"""Whether an engine loads on a class: pure, and by what is written down, never by trying it."""

from dataclasses import dataclass

from enginewright.contract.engines import why_unusable
from enginewright.contract.images import VARIANTS, ImageFacts

from enginewright_cli.inspect.result import EngineFit, EngineInspection


@dataclass(frozen=True)
class EngineTarget:
    """What an engine is to be loaded on; None and (): not known."""

    name: str  # "class l4"
    compute_capability: str | None = None
    backends: tuple[str, ...] = ()  # that the class allows
    images: tuple[ImageFacts, ...] = ()  # runtime images that the cluster has
    unknown: tuple[str, ...] = ()  # why something is not known


def judge(found: EngineInspection, target: EngineTarget) -> EngineFit:
    """Compare an engine with what it is to be loaded on."""
    obstacles = list(found.problems)
    missing = list(target.unknown)
    _capability(found, target, obstacles, missing)
    if found.backend and target.backends and found.backend not in target.backends:
        obstacles.append(
            f"it is run by backend {found.backend}, and {target.name} allows"
            f" {', '.join(target.backends)} only: add it to spec.backends of the AcceleratorClass"
        )
    _versions(found, target, obstacles, missing)
    return EngineFit(
        target=target.name,
        loads=not obstacles,
        obstacles=tuple(obstacles),
        not_compared=tuple(missing),
    )


def _capability(
    found: EngineInspection, target: EngineTarget, obstacles: list[str], missing: list[str]
) -> None:
    wanted, runs_on = target.compute_capability, found.compute_capabilities
    if wanted is None:
        missing.append(f"compute capability: {target.name} does not say which its devices have")
        return
    unusable = why_unusable(found.backend, wanted) if found.backend else None
    if not runs_on:
        missing.append("compute capability: the engine does not say which it runs on")
    if runs_on and wanted not in runs_on:
        obstacles.append(
            f"it runs on compute capability {', '.join(runs_on)} and not on {wanted}:"
            f" {unusable or 'build one for that'}"
        )
    elif unusable:
        obstacles.append(unusable)


def _versions(
    found: EngineInspection, target: EngineTarget, obstacles: list[str], missing: list[str]
) -> None:
    """Compare with the images that run the backend: one of them must have both versions."""
    if found.backend is None or found.backend_version is None:
        missing.append("versions: the engine does not say what it was built by")
        return
    images = [each for each in target.images if found.backend in each.backends]
    if not images:
        variant = VARIANTS.get(found.backend, "right")
        missing.append(f"versions: no runtime image of variant {variant} is known")
        return
    if any(_matches(found, each) for each in images):
        return
    have = ", ".join(
        sorted(
            {
                f"{found.backend} {each.backends[found.backend]} with ONNX Runtime {each.ort_version}"
                for each in images
            }
        )
    )
    made = f"{found.backend} {found.backend_version}"
    if found.ort_version is not None:
        made += f" with ONNX Runtime {found.ort_version}"
    obstacles.append(
        f"it was built by {made}, and the runtime images have {have}: serve with the image that"
        " built it, or have it rebuilt"
    )


def _matches(found: EngineInspection, image: ImageFacts) -> bool:
    return image.backends[found.backend or ""] == found.backend_version and (
        found.ort_version is None or image.ort_version == found.ort_version
    )
