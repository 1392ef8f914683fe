"""Publishes to a store from a process of its own, for tests of what happens when several do."""

import sys
from pathlib import Path

from enginewright.contract.manifest import ArtifactFile, Manifest
from enginewright.contract.task import Recipe
from enginewright_runtime.store import Store

FILES = ("model/model.onnx", "golden/inputs.npz", "golden/outputs.npz")


def manifest(key: str, files: tuple[ArtifactFile, ...]) -> Manifest:
    """Return a manifest of `files`."""
    return Manifest(
        key=key,
        model_digest="0" * 64,
        recipe=Recipe(backend="cpu", ort_version="1.31.1", max_opset=26, max_ir_version=13),
        model=FILES[0],
        files=files,
        opset=17,
        ir_version=9,
        nodes=1,
        inputs=(),
        outputs=(),
        golden_source="generated",
        versions={},
    )


def publish(root: Path, key: str, folder: Path) -> bool:
    """Publish the three files of `folder`; return whether the store had them already."""
    files = {name: folder / Path(name).name for name in FILES}
    _, cached = Store(root).publish(key, files, lambda listed: manifest(key, listed))
    return cached


def main() -> None:
    """Publish what the command line names and print whether it was cached."""
    root, key, folder = sys.argv[1:]
    print(publish(Path(root), key, Path(folder)))


if __name__ == "__main__":
    main()
