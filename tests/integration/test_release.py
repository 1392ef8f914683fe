"""`hack/release` of a small repository with the real chart: what Helm and sha256sum read, and the same bytes twice."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver import build

from hack.releasing.archives import path_of
from tests.support.image_builder import load_images
from tests.support.programs import run_program

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / ".venv-release/bin/python"
VERSION = "9.9.0"
CHANGES = f"""# Changelog

## {VERSION} - 2026-12-01

### Added

- Everything.
"""
GIT = {
    **{
        f"GIT_{who}_{what}": "a@b.invalid"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
    "GIT_CONFIG_GLOBAL": "/dev/null",
}

pytestmark = pytest.mark.timeout(1500)  # helm is built when it is first used

Release = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A commit with what a release of the chart reads, under another version."""
    root = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "charts", root / "charts")
    for name in (
        "pyproject.toml",
        "operator/enginewright/__init__.py",
        "charts/enginewright/Chart.yaml",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        text = (REPOSITORY / name).read_text()
        changed = re.sub(
            r'^((?:__|app)?[vV]ersion(?:__)?(?: =|:) "?)[\d.]+',
            rf"\g<1>{VERSION}",
            text,
            flags=re.MULTILINE,
        )
        (root / name).write_text(changed)
    (root / "CHANGELOG.md").write_text(CHANGES)
    written = root / f"tests/fixtures/releases/{VERSION}.json"
    written.parent.mkdir(parents=True)
    written.touch()
    for command in ("init --quiet", "add --all", "commit --quiet --message all"):
        run_program(["git", *command.split()], cwd=root, env=os.environ | GIT)
    return root


@pytest.fixture
def release(repository: Path) -> Release:
    """Releases the repository."""

    def call(*arguments: str, code: int = 0, **environment: str) -> Any:
        variables = os.environ | {"PYTHONPATH": str(REPOSITORY), **environment}
        command: list[str | Path] = [PYTHON, "-m", "hack.releasing", VERSION, *arguments]
        return run_program(command, cwd=repository, env=variables, code=code)

    return call


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_releases_of_a_commit_are_the_same_bytes(
    repository: Path, release: Release, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    printed = [
        release("--images=", f"--output={folder}").stdout.split()[1] for folder in (first, second)
    ]
    assert read(first) == read(second)
    assert (
        printed == [f"sha256:{hashlib.sha256((first / 'SHA256SUMS').read_bytes()).hexdigest()}"] * 2
    )
    run_program(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=first)
    assert "- Everything." in (first / "TAG").read_text()

    # Helm reads the archive, and the layout has the same one
    archive = first / f"enginewright-{VERSION}.tgz"
    helm = build.binaries() / "kube"
    shown = yaml.safe_load(run_program([helm, "helm", "show", "chart", archive]).stdout)
    assert (shown["version"], shown["appVersion"]) == (VERSION, VERSION)
    assert "Everything." in shown["annotations"]["artifacthub.io/changes"]
    images = "images.operator=o:1,images.runtime.cpu=c:1"
    packed = run_program([helm, "helm", "template", archive, "--set", images]).stdout
    plain = run_program(
        [helm, "helm", "template", repository / "charts/enginewright", "--set", images]
    ).stdout
    assert packed == plain
    with tarfile.open(first / f"enginewright-{VERSION}.oci.tar") as layout:
        files = {entry.name: layout.extractfile(entry).read() for entry in layout}  # type: ignore[union-attr]  # all are files
    (listed,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[path_of(listed["digest"])])
    assert files[path_of(manifest["layers"][0]["digest"])] == archive.read_bytes()
    assert json.loads(files[path_of(manifest["config"]["digest"])]) == shown


def test_what_is_not_of_one_commit_and_version_is_refused(
    repository: Path, release: Release
) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGES.replace(VERSION, "9.8.0"))
    chart = repository / "charts/enginewright/Chart.yaml"
    chart.write_text(chart.read_text().replace(VERSION, "9.8.0"))
    refused = release("--images=", code=1).stderr
    for sentence in (
        "Chart.yaml: appVersion is 9.8.0",
        "files differ from the commit",
        f"`## {VERSION} -",
    ):
        assert sentence in refused
    assert not (repository / "build").exists()


EXPORT = """
import sys
from pathlib import Path
from hack.releasing import contents, images, sbom
with images.export("cpu", sys.argv[1], "9.9.0") as exported:
    exported.write_archive(Path(sys.argv[2]), 1700000000)
    packages = contents.read_layout(exported.layout)
    print(sbom.describe_packages(exported.repository, exported.tag, packages, 1700000000))
"""


def test_an_image_and_its_sbom_are_the_same_in_every_export(tmp_path: Path) -> None:
    load_images().install_tools()
    configuration = tmp_path / "storage.conf"
    configuration.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    variables: Mapping[str, str] = os.environ | {
        "CONTAINERS_STORAGE_CONF": str(configuration),
        "PYTHONPATH": str(REPOSITORY),
    }
    environment = REPOSITORY / ".venv-release"
    tree = tmp_path / "tree"
    for path in environment.rglob("*.dist-info/METADATA"):
        copied = tree / "opt" / path.relative_to(environment)
        copied.parent.mkdir(parents=True)
        shutil.copy(path, copied)

    def buildah(*arguments: str) -> str:
        return run_program(["buildah", *arguments], env=variables).stdout.strip()

    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(tree), "/")
    buildah("commit", "--quiet", container, "localhost/test-of-release:1")
    archives = [tmp_path / "first.oci.tar", tmp_path / "second.oci.tar"]
    printed = [
        run_program(
            [PYTHON, "-c", EXPORT, "localhost/test-of-release:1", path], env=variables
        ).stdout
        for path in archives
    ]
    assert printed[0] == printed[1]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    described = json.loads(printed[0])
    assert (described["bomFormat"], described["specVersion"]) == ("CycloneDX", "1.6")
    licences = {
        part["purl"]: part["licenses"] for part in described["components"] if "licenses" in part
    }
    (own,) = [licences[url] for url in licences if url.startswith("pkg:pypi/cyclonedx-python-lib@")]
    assert own == [{"license": {"id": "Apache-2.0"}}]
    locked = re.findall(
        r"^([\w.-]+)==", (REPOSITORY / "requirements/release.txt").read_text(), re.MULTILINE
    )
    assert {part["name"] for part in described["components"]} >= {
        name.replace(".", "-") for name in locked
    }
