"""What is installed here, asked once: the probe of an image takes longer than an unchanged model."""

from enginewright.contract.images import ImageFacts

from enginewright_cli.preflight.cache import ResultCache
from enginewright_cli.preflight.stages import Stages
from enginewright_cli.preflight.stopping import Stop


def installed_facts(
    cache: ResultCache | None, installed: str, stages: Stages, stop: Stop
) -> ImageFacts:
    """Return what this installation holds.

    Args:
        cache: that knows it, perhaps.
        installed: digest of what is installed.
        stages: that begins what runs.
        stop: is set when nobody wants to know any more.

    Raises:
        InstallationError: it cannot say.
        Stopped: `stop` was set.
        OSError: there is no space for a temporary folder.
    """
    if cache and (known := cache.tools(installed)):
        return known
    stages.begin()
    from enginewright_cli.preflight.workspace import workspace  # noqa: PLC0415 - while they begin

    with workspace(stages, stop) as place, place.pod("probe") as pod:
        held = pod.facts()
    if cache:
        cache.keep_tools(installed, held)
    return held
