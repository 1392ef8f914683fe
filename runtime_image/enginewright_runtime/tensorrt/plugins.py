"""Loads users' plug-in libraries, in each process that builds or runs with them.

TensorRT's plug-in registry reports why it refuses a library only to its logger.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from enginewright_runtime.session.extensions import elf
from enginewright_runtime.session.extensions.libraries import (
    Libraries,
    describe_failure,
    load_plugins,
    short,
)
from enginewright_runtime.tensorrt.diagnosis import sentence

# what IPluginRegistry::loadLibrary looks for, in TensorRT-RTX 1.7 and TensorRT 10; a library
# without it registers its plug-ins itself when it is opened
_ENTRIES: Final = frozenset({"getCreators", "getPluginCreators"})
_OWN_MESSAGE: Final = "loadLibrary"


def load(trt: Any, logger: Any, plugins: Sequence[Path]) -> None:  # noqa: ANN401 - NVIDIA's module
    """Load and register libraries in a child process; raises ExtensionFailed with the library's message."""
    if not plugins:
        return
    load_plugins(Libraries(plugins=tuple(plugins)))
    registry = trt.get_plugin_registry()
    if registry is None:
        raise describe_failure(plugins[0], "the library has no registry of plug-ins")
    for path in plugins:
        if _ENTRIES.isdisjoint(elf.read(path).exports):
            continue
        before = len(logger.errors)
        if registry.load_library(str(path)) is None:
            messages = [error for error in logger.errors[before:] if _OWN_MESSAGE in error]
            raise describe_failure(
                path, short(sentence(messages[0])) if messages else "the registry refuses it"
            )
