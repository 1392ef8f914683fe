"""Publishes to a store from a separate process, for tests of concurrent publication."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store, open_store

from tests.support.manifests import manifest as smallest

Describe = Callable[[tuple[ArtifactFile, ...]], Manifest]
FILES = ("model/model.onnx", "golden/inputs.npz", "golden/outputs.npz")


def manifest(key: str, files: tuple[ArtifactFile, ...]) -> Manifest:
    return smallest(key=key, model=FILES[0], files=files)


def publish(
    store: Store | Path,
    key: str,
    folder: Path,
    describe: Describe | None = None,
    names: Iterable[str] = FILES,
) -> bool:
    """Publish files of `folder`; return whether the store had them already."""
    files = {name: folder / Path(name).name for name in names}
    opened = Store(store) if isinstance(store, Path) else store
    _, cached = opened.publish(key, files, describe or partial(manifest, key))
    return cached


def main() -> None:
    """Publish the artefact given on the command line and print whether it was cached."""
    key, folder = sys.argv[1:]
    logs.configure("publish")
    print(publish(open_store(Paths.from_environment()), key, Path(folder)))


if __name__ == "__main__":
    main()
