"""Container images without a builder: a static binary in one layer, and imports into containerd."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from driver.errors import ClusterError
from driver.layout import Node
from driver.processes import run


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
    partial = archive.with_suffix(".partial")
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


def references(archive: Path) -> list[str]:
    """Return the names that an oci-archive or docker-archive carries.

    Raises:
        ClusterError: It is neither.
    """
    try:
        with tarfile.open(archive) as tar:
            names = tar.getnames()
            if "manifest.json" in names:
                raw = tar.extractfile("manifest.json")
                entries = json.load(raw) if raw else []
                return [tag for entry in entries for tag in entry.get("RepoTags") or []]
            raw = tar.extractfile("index.json")
            index = json.load(raw) if raw else {}
    except (tarfile.TarError, OSError, KeyError, json.JSONDecodeError, gzip.BadGzipFile) as error:
        raise ClusterError(
            f"{archive} is no image archive ({error}); make one with `buildah push NAME oci-archive:FILE:NAME`"
        ) from None
    key = "org.opencontainers.image.ref.name"
    return [
        entry["annotations"][key]
        for entry in index.get("manifests", [])
        if key in entry.get("annotations", {})
    ]


def load(node: Node, archive: Path) -> bool:
    """Import an archive into a node's containerd, unless this very file is there; tell whether."""
    stat = archive.stat()
    mark = f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    marks = node.folder / "images"
    marks.mkdir(exist_ok=True)
    remembered = marks / hashlib.sha256(mark.encode()).hexdigest()
    if remembered.exists():
        return False
    if not references(archive):
        raise ClusterError(f"{archive} names no image; push it with a name: oci-archive:FILE:NAME")
    run(
        "ctr", "--address", node.containerd_socket, "--namespace", "k8s.io",
        "images", "import", archive,
        timeout=300,
    )  # fmt: skip
    remembered.write_text(mark)
    return True
