"""What has to be true before anything is made: the version has one name everywhere, and the commit has everything."""

import re
import tomllib
from pathlib import Path
from typing import Final

import yaml

CHART: Final = "charts/enginewright/Chart.yaml"
_PROJECT: Final = "pyproject.toml"
_CODE: Final = "operator/enginewright/__init__.py"
_WRITTEN: Final = "tests/fixtures/releases"  # what each version writes to clusters
_SEMVER: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")


def find_wrong_versions(root: Path, version: str) -> list[str]:
    """Return what names another version than the release's, with what to write."""
    if not _SEMVER.fullmatch(version):
        return [f"{version} is no version such as 0.2.0 or 0.2.0-rc.1"]
    chart = yaml.safe_load((root / CHART).read_text())
    named = re.search(r'^__version__ = "(.+)"$', (root / _CODE).read_text(), re.MULTILINE)
    versions = {
        f"{_PROJECT}: version": tomllib.loads((root / _PROJECT).read_text())["project"]["version"],
        f"{_CODE}: __version__": named[1] if named else "nothing",
        f"{CHART}: version": str(chart["version"]),
        f"{CHART}: appVersion": str(chart["appVersion"]),
    }
    problems = [
        f"{place} is {other}: write {version}"
        for place, other in versions.items()
        if other != version
    ]
    if not (root / _WRITTEN / f"{version}.json").is_file():
        problems.append(
            f"{_WRITTEN} lacks {version}.json: run python -m tests.support.releases {version}"
        )
    return problems


def find_unclean(status: str, head: str, tagged: str, version: str) -> list[str]:
    """Return why a commit is not what the release would be made of.

    Args:
        status: Output of `git status --porcelain`.
        head: The commit.
        tagged: The commit that the release's tag names; empty if there is no tag.
        version: The release's.
    """
    problems = []
    if changed := [line[3:] for line in status.splitlines()]:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if changed[3:] else "")
        problems.append(f"files differ from the commit: commit or remove {shown}")
    if tagged and tagged != head:
        problems.append(f"the tag v{version} names {tagged[:12]}, not this commit: check it out")
    return problems
