"""Facts of this installation, cached: the probe takes longer than the check of an unchanged model."""

from enginewright_contract.images import ImageFacts

from enginewright_cli.preflight.cache import ResultCache
from enginewright_cli.preflight.stages import Stages
from enginewright_cli.preflight.stopping import Stop
from enginewright_cli.preflight.targets import PARSED


def probe_installation(
    cache: ResultCache | None, installed: str, stages: Stages, stop: Stop
) -> ImageFacts:
    """Return the facts of this installation, cached if possible. Raises InstallationError, Stopped and OSError."""
    if cache and (cached := cache.tools(installed)):
        return _with_parser(cached)
    stages.start()
    from enginewright_cli.preflight.workspace import workspace  # noqa: PLC0415 - while the fork server starts

    with workspace(stages, stop) as place, place.pod("probe") as pod:
        held = pod.facts()
    if cache:
        cache.keep_tools(installed, held)
    return _with_parser(held)


def _with_parser(held: ImageFacts) -> ImageFacts:
    """Add TensorRT where only its libraries are here: they parse models that no provider here serves."""
    from enginewright_runtime.tensorrt.flavor import FLAVORS, find_version  # noqa: PLC0415 - loaded lazily

    version = None if PARSED in held.backends else find_version(FLAVORS[PARSED])
    if version is None:
        return held
    return held.model_copy(update={"backends": {**held.backends, PARSED: version}})
