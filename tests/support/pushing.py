"""Pushes the OCI image of a prepared model, as its stage does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from enginewright_runtime import oci
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store

from tests.support.optional import present
from tests.support.store_process import FILES, Describe, publish

KEY = "ab" * 32
CONTENT = {name: np.random.default_rng(3).bytes(300_000 + len(name)) for name in FILES}


def fill_store(
    store: Store | Path,
    folder: Path,
    content: dict[str, bytes] = CONTENT,
    *,
    key: str = KEY,
    describe: Describe | None = None,
) -> Store:
    """Publish files in a store, from a folder that is made for them."""
    if isinstance(store, Path):
        store.mkdir(parents=True)
        store = Store(store)
    folder.mkdir(parents=True)
    for name, data in content.items():
        (folder / Path(name).name).write_bytes(data)
    publish(store, key, folder, describe, content)
    return store


def push(
    store: Store,
    root: Path,
    repository: str,
    secret: dict[str, str] | None = None,
    seconds: float = 300,
) -> oci.Pushed:
    """Push the image of what `filled` has published."""
    paths = replace(Paths.under(root), images=repository)
    paths.images_credentials.mkdir(exist_ok=True)
    for key, value in (secret or {"plain-http": "true"}).items():
        (paths.images_credentials / key).write_text(value)
    artifact = present(store.find(KEY))
    return oci.push(paths, store, artifact, seconds)
