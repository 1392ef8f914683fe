"""Copies of images from one node to another: the layers' files are linked, as all nodes are on one machine.

Layers are only read, below the containers' own files, so nodes may share them. Importing an archive again would
read, hash and write all of it for each node.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from driver.errors import ClusterError
from driver.layout import Node
from driver.processes import run

_NAME = "io.containerd.image.name"


def copy(source: Node, target: Node, names: Sequence[str]) -> bool:
    """Copy images that `source` has under these names.

    Returns:
        Whether they were copied; images for several platforms cannot be.

    Raises:
        ClusterError: containerd rejected it.
    """
    listed = [line.split()[:3] for line in ctr(source, "images", "ls").splitlines()]
    digests = {name: digest for name, _, digest in listed if name in names}
    kinds = {digest: kind for _, kind, digest in listed}
    blobs = {digest: ctr(source, "content", "get", digest) for digest in digests.values()}
    manifests: dict[str, dict[str, Any]] = {key: json.loads(raw) for key, raw in blobs.items()}
    if not all("layers" in entry for entry in manifests.values()):
        return False
    present = {line.split()[0] for line in ctr(target, "snapshots", "ls").splitlines()[1:]}
    for manifest in manifests.values():
        digest = manifest["config"]["digest"]
        blobs[digest] = ctr(source, "content", "get", digest)
        parent = ""
        for chain in chains(json.loads(blobs[digest])["rootfs"]["diff_ids"]):
            if chain not in present:
                _link(source, target, chain, parent)
            parent = chain
    archive = target.folder / "copied.tar"
    entries = [
        {
            "mediaType": kinds[digest],
            "digest": digest,
            "size": len(blobs[digest].encode()),
            "annotations": {_NAME: name},
        }
        for name, digest in digests.items()
    ]
    archive.write_bytes(_layout(entries, blobs))
    ctr(target, "images", "import", archive)  # finds the layers unpacked
    archive.unlink()
    return True


def chains(layers: Sequence[str]) -> Iterator[str]:
    """Yield containerd's names of a stack of layers, from the lowest one on."""
    chain = ""
    for layer in layers:
        joined = f"{chain} {layer}".encode()
        chain = f"sha256:{hashlib.sha256(joined).hexdigest()}" if chain else layer
        yield chain


def own_folder(mount: str) -> str:
    """Return where a new layer's files are kept, from the command that mounts it. Raises ClusterError."""
    return _search(r"upperdir=([^,\s]+)|-t bind (\S+)", mount)


def folder_below(mount: str) -> str:
    """Return where the files of the layer below a new one are kept, likewise. Raises ClusterError."""
    return _search(r"lowerdir=([^:,\s]+)", mount)


def _search(pattern: str, mount: str) -> str:
    option = re.search(pattern, mount)
    if option is None:
        raise ClusterError(f"containerd keeps no layers in folders: {mount!r}")
    return str(next(filter(None, option.groups())))


def _link(source: Node, target: Node, chain: str, parent: str) -> None:
    """Create a layer upon its parent, of links to the files of another node's."""
    key = f"copy-{os.getpid()}-{chain}"
    # a view of the layer would have been enough, but may be collected as garbage at once
    ctr(source, "snapshots", "prepare", key, chain)
    ctr(target, "snapshots", "prepare", key, *filter(None, (parent,)))
    files = folder_below(ctr(source, "snapshots", "mounts", "/mnt", key))
    new = own_folder(ctr(target, "snapshots", "mounts", "/mnt", key))
    run("cp", "--archive", "--link", f"{files}/.", new, timeout=600)
    ctr(target, "snapshots", "commit", chain, key)
    ctr(source, "snapshots", "rm", key)


def _layout(entries: Sequence[object], blobs: dict[str, str]) -> bytes:
    """Return an oci-archive without layers."""
    index = {"schemaVersion": 2, "manifests": entries}
    files = {"oci-layout": '{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index)}
    files |= {f"blobs/{digest.replace(':', '/')}": blob for digest, blob in blobs.items()}
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def ctr(node: Node, *arguments: str | Path) -> str:
    """Run containerd's client on a node. Raises ClusterError."""
    socket = node.containerd_socket
    return run("ctr", "--address", socket, "--namespace", "k8s.io", *arguments, timeout=600)
