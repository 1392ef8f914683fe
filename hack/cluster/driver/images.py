"""Images of one static binary, written without a builder; import of archives into containerd."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driver import image_copies
from driver.errors import ClusterError
from driver.image_copies import ctr
from driver.layout import Node
from driver.processes import run

_NAME_KEY = "org.opencontainers.image.ref.name"


def archive_binary(binary: Path, reference: str, archive: Path) -> None:
    """Write an image whose only file is `binary`, as a docker-archive."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        info = tarfile.TarInfo(binary.name)
        info.mode, info.size = 0o755, binary.stat().st_size
        with binary.open("rb") as source:
            tar.addfile(info, source)
    content = layer.getvalue()
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{binary.name}"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    raw = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(raw).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    partial = archive.with_suffix(f".{os.getpid()}")  # another process may write the same archive
    with tarfile.open(partial, mode="w") as tar:
        for name, body in (
            (config_name, raw),
            ("layer.tar", content),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    partial.rename(archive)


def _architecture() -> str:
    machine = run("uname", "-m").strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@dataclass(frozen=True)
class Content:
    """Names in an image archive, and a digest of its index, which covers all content."""

    references: tuple[str, ...]
    digest: str


def inspect(archive: Path) -> Content:
    """Read the index of an oci-archive or a docker-archive, which refers to its content by digest.

    Raises:
        ClusterError: It is neither, or contains no image name or one without a tag.
    """
    try:
        with tarfile.open(archive) as tar:
            docker = "manifest.json" in tar.getnames()
            member = tar.extractfile("manifest.json" if docker else "index.json")
            raw = member.read() if member else b"{}"
        index = json.loads(raw)
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
        raise ClusterError(
            f"{archive} is not an image archive ({error}); "
            "create one with `buildah push NAME oci-archive:FILE:NAME`"
        ) from None
    if docker:
        names = [tag for entry in index for tag in entry.get("RepoTags") or []]
    else:
        annotations = [entry.get("annotations", {}) for entry in index.get("manifests", [])]
        names = [annotation[_NAME_KEY] for annotation in annotations if _NAME_KEY in annotation]
    if not names:
        raise ClusterError(
            f"{archive} contains no image name; push it with one: oci-archive:FILE:NAME"
        )
    if untagged := [name for name in names if ":" not in name.rpartition("/")[2]]:
        raise ClusterError(
            f"{archive} contains {untagged[0]!r} without a tag; push it as {untagged[0]}:TAG"
        )
    return Content(tuple(names), hashlib.sha256(raw).hexdigest())


def canonical(reference: str) -> str:
    """Return the fully qualified name that a kubelet requests: with registry, path and tag."""
    first, slash, rest = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not (first == "localhost" or "." in first or ":" in first):
        reference = f"docker.io/{first}/{rest}"
    return reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"


def load(node: Node, archive: Path, loaded: Node | None = None) -> bool:
    """Import an archive into a node's containerd, unless its names already refer to it there.

    It is copied from `loaded`, a node that has it, if there is one.

    Returns:
        Whether it was imported or copied.

    Raises:
        ClusterError: It is not an archive of a named image, or containerd rejected it.
    """
    content = inspect(archive)
    record = node.folder / "images.json"
    imported: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    names = [canonical(reference) for reference in content.references]
    if all(imported.get(name) == content.digest for name in names):
        return False
    if loaded is None or not image_copies.copy(loaded, node, names):
        _import(node, archive, content.references, names)
    imported.update(dict.fromkeys(names, content.digest))
    partial = record.with_suffix(".tmp")
    partial.write_text(json.dumps(imported, indent=1))
    partial.rename(record)
    return True


def _import(node: Node, archive: Path, references: Sequence[str], names: Sequence[str]) -> None:
    ctr(node, "images", "import", archive)
    _discard_unpacked(node)
    # containerd keeps an oci-archive's names unqualified. No kubelet requests these, and each one
    # hides the same content under its qualified name, so it is replaced by that.
    present = ctr(node, "images", "ls", "--quiet").split()
    for given, name in zip(references, names, strict=True):
        if given != name and given in present:
            ctr(node, "images", "tag", "--force", given, name)
            ctr(node, "images", "rm", given)


def _discard_unpacked(node: Node) -> None:
    """Remove the layers' archives: pods use the unpacked snapshots, and archives double disk use.

    This is what containerd's `discard_unpacked_layers` does for pulled images.
    """
    listed = ctr(node, "content", "ls").splitlines()
    layers = [line.split()[0] for line in listed if "containerd.io/uncompressed=" in line]
    if layers:
        ctr(node, "content", "rm", *layers)
        # disk space is freed by garbage collection, which deleting a lease synchronously triggers
        lease = ctr(node, "leases", "create").strip()
        ctr(node, "leases", "rm", "--sync", lease)
