"""The process's limit on open files: as many connections as it allows, and not more."""

import logging
import resource
from dataclasses import replace
from typing import Final, TypeVar

from enginewright_serving.transport.settings import TransportSettings

_SPARE: Final = 128  # beside the connections: model, libraries, threads' event files
_log: Final = logging.getLogger(__name__)
_S = TypeVar("_S", bound=TransportSettings)


def fit_files(settings: _S, *, protocols: int = 1, handshakes: int = 0) -> _S:
    """Raise the soft limit to what the connections need; return how many the hard limit allows.

    Args:
        settings: with the wanted number of connections.
        protocols: each has so many.
        handshakes: of each protocol at once, beside its connections.
    """
    beside = settings.reserved_connections + handshakes
    wanted = protocols * (settings.connections + beside) + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == wanted:
        return settings
    connections = max(1, (limit - _SPARE) // protocols - beside)
    _log.warning(
        "the limit on open files is %d: only %d connections are allowed", limit, connections
    )
    return replace(settings, connections=connections)
