"""Container images without a builder: a static binary in one layer, and imports into containerd."""

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from driver.errors import ClusterError
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
    partial = archive.with_suffix(f".{os.getpid()}")  # another process may write the same one
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
    """What an image archive holds: the names, and a digest over all that they stand for."""

    references: tuple[str, ...]
    digest: str


def inspect(archive: Path) -> Content:
    """Read an oci-archive's or a docker-archive's index, which names its content by digests.

    Raises:
        ClusterError: It is neither, or carries no name.
    """
    try:
        with tarfile.open(archive) as tar:
            docker = "manifest.json" in tar.getnames()
            member = tar.extractfile("manifest.json" if docker else "index.json")
            raw = member.read() if member else b"{}"
        index = json.loads(raw)
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
        raise ClusterError(
            f"{archive} is no image archive ({error}); "
            "make one with `buildah push NAME oci-archive:FILE:NAME`"
        ) from None
    if docker:
        found = [tag for entry in index for tag in entry.get("RepoTags") or []]
    else:
        annotations = [entry.get("annotations", {}) for entry in index.get("manifests", [])]
        found = [each[_NAME_KEY] for each in annotations if _NAME_KEY in each]
    if not found:
        raise ClusterError(f"{archive} names no image; push it with a name: oci-archive:FILE:NAME")
    if vague := [name for name in found if ":" not in name.rpartition("/")[2]]:
        raise ClusterError(f"{archive} names {vague[0]!r} without a tag; push it as {vague[0]}:TAG")
    return Content(tuple(found), hashlib.sha256(raw).hexdigest())


def canonical(reference: str) -> str:
    """Return the name under which a kubelet asks for an image: with registry, path and tag."""
    first, slash, rest = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not (first == "localhost" or "." in first or ":" in first):
        reference = f"docker.io/{first}/{rest}"
    return reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"


def load(node: Node, archive: Path) -> bool:
    """Import an archive into a node's containerd, unless its names stand for it there already.

    Returns:
        Whether it was imported.

    Raises:
        ClusterError: It is no archive of a named image, or containerd refused it.
    """
    content = inspect(archive)
    record = node.folder / "images.json"
    imported: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    names = [canonical(reference) for reference in content.references]
    if all(imported.get(name) == content.digest for name in names):
        return False
    _ctr(node, "images", "import", archive)
    _discard_unpacked(node)
    # containerd takes an oci-archive's names as they are. One that no kubelet would ask for also
    # hides the same content from those who ask for it by another name: it must not stay.
    known = _ctr(node, "images", "ls", "--quiet").split()
    for given, name in zip(content.references, names, strict=True):
        if given != name and given in known:
            _ctr(node, "images", "tag", "--force", given, name)
            _ctr(node, "images", "rm", given)
    imported.update(dict.fromkeys(names, content.digest))
    partial = record.with_suffix(".tmp")
    partial.write_text(json.dumps(imported, indent=1))
    partial.rename(record)
    return True


def _discard_unpacked(node: Node) -> None:
    """Remove the layers' archives: pods need what was unpacked, and these are half of the disk.

    What containerd's `discard_unpacked_layers` does for images that it pulls.
    """
    listed = _ctr(node, "content", "ls").splitlines()
    layers = [line.split()[0] for line in listed if "containerd.io/uncompressed=" in line]
    if layers:
        _ctr(node, "content", "rm", *layers)
        # what is removed goes with the next collection, and the end of a lease is one
        lease = _ctr(node, "leases", "create").strip()
        _ctr(node, "leases", "rm", "--sync", lease)


def _ctr(node: Node, *arguments: str | Path) -> str:
    socket = node.containerd_socket
    return run("ctr", "--address", socket, "--namespace", "k8s.io", *arguments, timeout=600)
