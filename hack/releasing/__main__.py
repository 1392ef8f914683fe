"""Makes a release of the commit in the current directory; `hack/release` says how."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.releasing import archives, chart, checks, contents, images, sbom
from hack.releasing.changelog import Section, read_section

_CHART: Final = "charts/enginewright/"
_IMAGES: Final = "operator,cpu,openvino,gpu,rtx"


def main(arguments: Sequence[str]) -> int:
    """Check the commit, and write the release; print its digest, that of SHA256SUMS."""
    parser = argparse.ArgumentParser(prog="hack/release", allow_abbrev=False)
    parser.add_argument("version")
    parser.add_argument("--images", default=_IMAGES, help="names of hack/images; empty: none")
    parser.add_argument("--output", type=Path, help="default: build/release/VERSION")
    parsed = parser.parse_args(arguments)
    root, version = Path.cwd(), parsed.version
    output = parsed.output or root / "build/release" / version
    problems = checks.find_wrong_versions(root, version)
    tagged = git(
        "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}", check=False
    )
    problems += checks.find_unclean(
        git("status", "--porcelain"), git("rev-parse", "HEAD"), tagged, version
    )
    section = None
    try:
        section = read_section((root / "CHANGELOG.md").read_text(), version)
    except ValueError as error:
        problems.append(str(error))
    if problems or section is None:
        print(*(f"hack/release: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 1
    names = [name for name in parsed.images.split(",") if name]
    write(root, output, section, names)
    sums = (output / "SHA256SUMS").read_bytes()
    print(f"{output} {archives.digest_of(sums)}")
    return 0


def write(root: Path, output: Path, section: Section, names: Sequence[str]) -> None:
    """Write everything, in place of what an earlier run has left."""
    version = section.version
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    listed = []
    for name, reference in images.build(root, names) if names else ():
        with images.export(name, reference, version) as exported:
            file = f"enginewright-{exported.name}-{version}"
            exported.write_archive(output / f"{file}.oci.tar", time)
            packages = contents.read_layout(exported.layout)
            described = sbom.describe_packages(exported.repository, exported.tag, packages, time)
            (output / f"{file}.cdx.json").write_text(described)
            listed.append((exported.repository, exported.tag, exported.digest))
    paths = git("ls-files", "-z", _CHART).split("\0")
    files = {path.removeprefix(_CHART): (root / path).read_bytes() for path in paths if path}
    archive, layout = chart.package(files, section, time)
    (output / f"enginewright-{version}.tgz").write_bytes(archive)
    archives.write_tar(output / f"enginewright-{version}.oci.tar", layout, time)
    described = sbom.describe_chart("enginewright", version, listed, time)
    (output / f"enginewright-{version}.cdx.json").write_text(described)
    (output / "TAG").write_text(section.tag_text)
    (output / "SHA256SUMS").write_text(archives.checksums(output))


def git(*arguments: str, check: bool = True) -> str:
    """Return what git prints about the current directory's repository."""
    done = subprocess.run(["git", *arguments], check=check, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
