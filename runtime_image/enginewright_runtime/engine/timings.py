"""TensorRT's timing cache: kernel timings measured on the device, which speed up the next build.

Kept in the store for each version and class. Without it the build measures again, so errors are
only logged.
"""

import logging
import re
from pathlib import Path
from typing import Final

from enginewright_contract.task import EngineRecipe

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.store import Store
from enginewright_runtime.tensorrt.flavor import find
from enginewright_runtime.tensorrt.native import merge_timings

_log: Final = logging.getLogger(__name__)
_LIMITS: Final = Limits(seconds=120.0)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.]+")  # in a file name


class Timings:
    """The timing cache of one class, in a file for one build."""

    def __init__(self, store: Store, recipe: EngineRecipe, folder: Path) -> None:
        self._store = store
        self._recipe = recipe
        self._folder = folder
        self.path: Final = folder / "timing.cache"
        device = _UNSAFE.sub("-", recipe.device or recipe.accelerator_class)
        self._name: Final = f"timings-{recipe.backend}-{recipe.backend_version}-{device}"
        self._loaded: bytes | None = None

    def load(self) -> None:
        """Write the store's timings to the file; without any there is no file."""
        self.path.unlink(missing_ok=True)
        if not find(self._recipe.backend).timing_cache:
            return
        try:
            self._loaded = self._store.get_cache(self._name)
        except StageFailure as failure:
            _log.warning("building without earlier timings: %s", failure.message)
        if self._loaded is not None:
            self.path.write_bytes(self._loaded)

    def save(self, log: Path) -> None:
        """Put the file into the store, merged with what another build has stored meanwhile."""
        if not self.path.is_file():
            return
        try:
            meanwhile = self._store.get_cache(self._name)
            if meanwhile is not None and meanwhile != self._loaded:
                self._merge(meanwhile, log)
            content = self.path.read_bytes()
            if content != meanwhile:
                self._store.put_cache(self._name, content)
        except StageFailure as failure:
            _log.warning("the timings of this build are not kept: %s", failure.message)

    def _merge(self, other: bytes, log: Path) -> None:
        theirs = self._folder / "timing.other"
        theirs.write_bytes(other)
        try:
            Call(merge_timings, "merging timings", _LIMITS).run(
                backend=self._recipe.backend,
                version=self._recipe.backend_version,
                timings=[self.path, theirs],
                target=self.path,
                log=log,
            )
        finally:
            theirs.unlink()
