"""The entry point of the cache's process: `enginewright-cache`."""

import argparse
import asyncio
import logging
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enginewright_contract.node_cache import CACHE_PORT
from prometheus_client import CollectorRegistry

from enginewright.api.scalars import quantity
from enginewright.controller.logs import configure_logging
from enginewright.node_cache.folder import CacheFolder
from enginewright.node_cache.metrics import CacheMetrics
from enginewright.node_cache.server import CacheServer

_EX_CONFIG: Final = 78  # sysexits.h
# kubelets evict a pod whose volume is larger than its limit, and count folders too
_FILLED: Final = 0.95
_TRIM_SECONDS: Final = 10.0
_SHARE: Final = re.compile(r"(\d{1,2})%")
_log: Final = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; exit 78 with one sentence if the folder or the port is unusable."""
    parser = argparse.ArgumentParser(
        prog="enginewright-cache", description="Keeps files of artefacts for the pods of a node."
    )
    parser.add_argument("--folder", type=Path, required=True, help="where; the cache's alone")
    parser.add_argument(
        "--size", type=_size, required=True, help="of the volume: files occupy 95%% of it at most"
    )
    parser.add_argument(
        "--keep-free", type=_share, required=True, help="of the disk, such as 25%%, for others"
    )
    parser.add_argument("--port", type=int, default=CACHE_PORT)
    options = parser.parse_args(arguments)
    configure_logging("info")
    try:
        capacity = int(options.size * _FILLED)
        asyncio.run(_run(options.folder, capacity, options.keep_free, options.port))
    except OSError as error:
        print(f"enginewright-cache: {error}", file=sys.stderr)
        sys.exit(_EX_CONFIG)


def _size(text: str) -> int:
    try:
        size = quantity(text)
    except ValueError:
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 20Gi")
    return size


def _share(text: str) -> float:
    match = _SHARE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write 25%")
    return int(match[1]) / 100


async def _run(root: Path, capacity: int, kept_free: float, port: int) -> None:
    registry = CollectorRegistry()
    metrics = CacheMetrics(registry)
    folder = CacheFolder(root, capacity, metrics, kept_free)
    metrics.show(lambda: folder.entries.total, lambda: len(folder.entries), lambda: folder.capacity)
    server = CacheServer(folder, port, registry, metrics)
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    trimming = asyncio.create_task(_trim_forever(folder))
    await stop.wait()
    _log.info("received SIGTERM")
    trimming.cancel()
    await server.stop()


async def _trim_forever(folder: CacheFolder) -> None:
    """Keep the disk free for others, also while no pod offers a file."""
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        try:
            folder.trim()
        except OSError as error:
            _log.warning("the cache cannot be made smaller: %s", error)
