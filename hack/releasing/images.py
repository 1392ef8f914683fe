"""The built images as OCI archives: one that was built once has the same bytes in every export."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hack.releasing.archives import write_tar


class Export(NamedTuple):
    """One image in an OCI layout."""

    name: str  # operator, or runtime-cpu and so on
    repository: str  # enginewright/operator
    tag: str
    layout: Path
    digest: str

    def write_archive(self, path: Path, time: int) -> None:
        """Write the layout as an archive with the time, in seconds since the epoch."""
        files = (file for file in self.layout.rglob("*") if file.is_file())
        write_tar(path, {file.relative_to(self.layout).as_posix(): file for file in files}, time)


def build(root: Path, names: Sequence[str]) -> list[tuple[str, str]]:
    """Build the images that are missing, and return name and reference of each."""
    subprocess.run([root / "hack/images", "build", *names], check=True)
    listed = subprocess.run(
        [root / "hack/images", "list", *names], check=True, stdout=subprocess.PIPE, text=True
    )
    rows = (line.split() for line in listed.stdout.splitlines())
    return [(name, reference) for name, reference, _ in rows]


@contextmanager
def export(name: str, reference: str, version: str) -> Iterator[Export]:
    """Copy an image of buildah's into an OCI layout of its own; yield it."""
    repository, variant = ("operator", "") if name == "operator" else ("runtime", f"{name}-")
    tag = f"{variant}{version}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # no RAM disk
        layout = Path(folder)
        target = f"oci:{layout}:enginewright/{repository}:{tag}"
        subprocess.run(["buildah", "push", "--quiet", reference, target], check=True)
        (image,) = json.loads((layout / "index.json").read_text())["manifests"]
        full = f"runtime-{name}" if variant else repository
        yield Export(full, f"enginewright/{repository}", tag, layout, image["digest"])
