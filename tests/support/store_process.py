"""Publishes to a store from a separate process, for tests of concurrent publication."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store, open_store
from enginewright_runtime.store.store import keep_first

from tests.support.manifests import manifest as smallest

Describe = Callable[[tuple[ArtifactFile, ...]], Manifest]
Keeps = Callable[[Manifest, Manifest], bool]
FILES = ("model/model.onnx", "golden/inputs.npz", "golden/outputs.npz")


def manifest(key: str, files: tuple[ArtifactFile, ...]) -> Manifest:
    return smallest(key=key, model=FILES[0], files=files)


def never_keep(present: Manifest, made: Manifest) -> bool:
    """Let no artefact stay: the rule of a pipeline that has proved other bytes."""
    return False


def publish(
    store: Store | Path,
    key: str,
    folder: Path,
    describe: Describe | None = None,
    names: Iterable[str] = FILES,
    keeps: Keeps = keep_first,
) -> bool:
    """Publish files of `folder`; return whether the store had them already."""
    files = {name: folder / Path(name).name for name in names}
    opened = Store(store) if isinstance(store, Path) else store
    _, cached = opened.publish(key, files, describe or partial(manifest, key), keeps)
    return cached


def main() -> None:
    """Publish the artefact given on the command line and print whether it was cached."""
    key, folder = sys.argv[1:]
    logs.configure("publish")
    print(publish(open_store(Paths.from_environment()), key, Path(folder)))


if __name__ == "__main__":
    main()
