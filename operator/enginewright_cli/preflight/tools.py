"""What is installed here, asked once: the probe of an image takes longer than an unchanged model."""

from enginewright.contract.images import ImageFacts

from enginewright_cli.preflight.cache import Cache
from enginewright_cli.preflight.stages import Stages
from enginewright_cli.preflight.stopping import Stop


def installed_facts(cache: Cache | None, installed: str, stages: Stages, stop: Stop) -> ImageFacts:
    """Return what this installation holds.

    Args:
        cache: that knows it, perhaps.
        installed: digest of what is installed.
        stages: that begins what runs.
        stop: is set when nobody wants to know any more.

    Raises:
        InstallationError: it cannot say.
        Stopped: `stop` was set.
        OSError: there is no room for a temporary folder.
    """
    if cache and (known := cache.tools(installed)):
        return known
    stages.begin()
    from enginewright_cli.preflight.workplace import workplace  # noqa: PLC0415 - while they begin

    with workplace(stages, stop) as place, place.room("probe") as room:
        held = room.facts()
    if cache:
        cache.keep_tools(installed, held)
    return held
