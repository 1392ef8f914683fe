"""What a release is made of: checked versions, the changelog's section, and the packages of an image."""

import io
import tarfile
from pathlib import Path

import pytest
import yaml
from enginewright.api.crds import definitions
from enginewright_cli.plan.validation import problems

from hack.releasing.archives import make_tgz
from hack.releasing.changelog import read_section
from hack.releasing.chart import complete_metadata
from hack.releasing.checks import find_unclean, find_wrong_versions
from hack.releasing.contents import Package, apply_layer, find_packages

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = (REPOSITORY / "charts/enginewright/Chart.yaml").read_text()
CHANGELOG = """# Changelog

## Unreleased

## 0.2.0-rc.1 - 2026-12-01

### Added

- A field. It is
  [described](docs/resource.md).

### Fixed

- A fault: it was one.

## 0.1.0 - 2026-11-01
"""
DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def test_the_tag_and_artifact_hub_get_the_changes_of_the_version() -> None:
    section = read_section(CHANGELOG, "0.2.0-rc.1")
    assert section.tag_text == (
        "Enginewright 0.2.0-rc.1\n\n2026-12-01\n\nAdded\n\n- A field. It is described.\n\n"
        "Fixed\n\n- A fault: it was one.\n"
    )
    annotations = complete_metadata(CHART, section)["annotations"]
    assert annotations["artifacthub.io/prerelease"] == "true"
    assert yaml.safe_load(annotations["artifacthub.io/changes"]) == [
        {"kind": "added", "description": "A field."},
        {"kind": "fixed", "description": "A fault"},
    ]


@pytest.mark.parametrize(
    ("text", "version", "sentence"),
    [
        (CHANGELOG, "0.3.0", "no line `## 0.3.0 - YYYY-MM-DD`"),
        (CHANGELOG, "0.1.0", "has no change"),
        (CHANGELOG.replace("Fixed", "Mended"), "0.2.0-rc.1", "`### Mended` is none of"),
        (
            CHANGELOG.replace("released\n", "released\n\n- New."),
            "0.2.0-rc.1",
            "under `## Unreleased`",
        ),
    ],
)
def test_a_changelog_without_the_version_is_refused(text: str, version: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_section(text, version)


def test_one_version_is_named_everywhere() -> None:
    named = yaml.safe_load(CHART)["version"]
    assert find_wrong_versions(REPOSITORY, named) == []
    wrong = find_wrong_versions(REPOSITORY, "99.0.0")
    assert len(wrong) == 5
    assert wrong[0] == f"pyproject.toml: version is {named}: write 99.0.0"
    assert "is no version" in find_wrong_versions(REPOSITORY, "v1")[0]


def test_a_release_is_made_of_its_commit() -> None:
    assert find_unclean("", "a" * 40, "a" * 40, "1.0.0") == []
    changed, tagged = find_unclean(" M one\n?? two", "a" * 40, "b" * 40, "1.0.0")
    assert changed.endswith("commit or remove one, two")
    assert tagged.startswith("the tag v1.0.0 names bbbbbbbbbbbb,")


def test_packages_are_those_of_the_top_layers() -> None:
    def layer(**named: str) -> tarfile.TarFile:
        entries = [(name.replace("__", "/"), text.encode()) for name, text in named.items()]
        return tarfile.open(fileobj=io.BytesIO(make_tgz(entries, 0)))

    venv = "opt/venv/lib"
    files: dict[str, bytes] = {}
    for added in (
        {f"{venv}/old.dist-info/METADATA": "Name: old\nVersion: 1\n", "var/lib/dpkg/status": DPKG},
        {"etc/os-release": "", "usr/lib/os-release": 'ID=debian\nVERSION_ID="12"\n'},
        {
            f"{venv}/new.dist-info/METADATA": "Name: A.New_one\nVersion: 2\nLicense-Expression: MIT\n\nName: x",
            f"{venv}/.wh.old.dist-info": "",
        },
        {
            "srv/.wh..wh..opq": "",
            "srv/x.dist-info/METADATA": "Name: x\nVersion: 3\nLicense: UNKNOWN\n",
        },
    ):
        apply_layer(files, layer(**added))
    assert find_packages(files) == [
        Package("deb", "libc6", "2.36-9", "", "amd64", "debian-12"),
        Package("pypi", "a-new-one", "2", "MIT"),
        Package("pypi", "x", "3"),
    ]


def test_the_charts_metadata_names_what_it_installs() -> None:
    annotations = yaml.safe_load(CHART)["annotations"]
    crds = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert {(crd["name"], crd["kind"]) for crd in crds} == {
        (body["metadata"]["name"], body["spec"]["names"]["kind"]) for body in definitions().values()
    }
    (example,) = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert problems(example) == []
