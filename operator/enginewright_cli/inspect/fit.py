"""Whether an engine loads on a class, by its recorded properties, without loading it. Pure."""

from dataclasses import dataclass

from enginewright_contract.engines import why_unusable
from enginewright_contract.images import VARIANTS, ImageFacts

from enginewright_cli.inspect.result import EngineFit, EngineInspection


@dataclass(frozen=True)
class EngineTarget:
    """Where an engine is to be loaded; None and (): not known."""

    name: str  # "class l4"
    compute_capability: str | None = None
    backends: tuple[str, ...] = ()  # that the class allows
    images: tuple[ImageFacts, ...] = ()  # runtime images that the cluster has
    unknown: tuple[str, ...] = ()  # what is not known, and why


def judge(engine: EngineInspection, target: EngineTarget) -> EngineFit:
    """Compare an engine with its target."""
    obstacles = list(engine.problems)
    not_compared = list(target.unknown)
    _capability(engine, target, obstacles, not_compared)
    if engine.backend and target.backends and engine.backend not in target.backends:
        obstacles.append(
            f"it requires backend {engine.backend}, but {target.name} allows only"
            f" {', '.join(target.backends)}: add it to spec.backends of the AcceleratorClass"
        )
    _versions(engine, target, obstacles, not_compared)
    return EngineFit(
        target=target.name,
        loads=not obstacles,
        obstacles=tuple(obstacles),
        not_compared=tuple(not_compared),
    )


def _capability(
    engine: EngineInspection, target: EngineTarget, obstacles: list[str], not_compared: list[str]
) -> None:
    required, runs_on = target.compute_capability, engine.compute_capabilities
    if required is None:
        not_compared.append(
            f"compute capability: {target.name} does not specify that of its devices"
        )
        return
    unusable = why_unusable(engine.backend, required) if engine.backend else None
    if not runs_on:
        not_compared.append("compute capability: the engine does not record those that it runs on")
    if runs_on and required not in runs_on:
        obstacles.append(
            f"it runs on compute capability {', '.join(runs_on)}, not on {required}:"
            f" {unusable or 'build one for it'}"
        )
    elif unusable:
        obstacles.append(unusable)


def _versions(
    engine: EngineInspection, target: EngineTarget, obstacles: list[str], not_compared: list[str]
) -> None:
    """Compare with the images that run the backend: one of them must have both versions."""
    if engine.backend is None or engine.backend_version is None:
        not_compared.append("versions: the engine does not record what built it")
        return
    images = [image for image in target.images if engine.backend in image.backends]
    if not images:
        variant = VARIANTS.get(engine.backend, "right")
        not_compared.append(f"versions: no runtime image of variant {variant} is known")
        return
    if any(_matches(engine, image) for image in images):
        return
    have = ", ".join(
        sorted(
            {
                f"{engine.backend} {image.backends[engine.backend]} with ONNX Runtime {image.ort_version}"
                for image in images
            }
        )
    )
    built_by = f"{engine.backend} {engine.backend_version}"
    if engine.ort_version is not None:
        built_by += f" with ONNX Runtime {engine.ort_version}"
    obstacles.append(
        f"it was built by {built_by}, but the runtime images have {have}: serve with the image that"
        " built it, or rebuild it"
    )


def _matches(engine: EngineInspection, image: ImageFacts) -> bool:
    return image.backends[engine.backend or ""] == engine.backend_version and (
        engine.ort_version is None or image.ort_version == engine.ort_version
    )
