"""The process's limit on open files: as many connections as it allows, and not more."""

import logging
import resource
from dataclasses import replace
from typing import Final

from enginewright_serving.transport.settings import TransportSettings

_SPARE: Final = 128  # beside the connections: model, libraries, threads' event files
_log: Final = logging.getLogger(__name__)


def fit_files(
    settings: TransportSettings, *, protocols: int = 1, handshakes: int = 0
) -> TransportSettings:
    """Raise the soft limit to what each protocol's connections and `handshakes` need; reduce them to the hard limit."""
    beside = settings.reserved_connections + handshakes
    needed = protocols * (settings.connections + beside) + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == needed:
        return settings
    connections = max(1, (limit - _SPARE) // protocols - beside)
    _log.warning(
        "the limit on open files is %d: only %d connections are allowed", limit, connections
    )
    return replace(settings, connections=connections)
