"""Systems other than Linux: `pip install` does not fail, and the command says what it needs.

What they lack is taken away from a Python of this system, after its own library has been imported.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# No wheels for macOS, for Windows, or for either: PyPI, asked with pip download --platform
LINUX_ONLY = re.compile(r"uvloop|onnxruntime.*|tensorrt.*")
SYSTEMS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "darwin": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    "win32": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
ASKED = (
    "preflight",
    "preflight,rtx",
    "preflight-openvino",
    "preflight-gpu",
    "cli",
)


def find_requirements(extras: str, system: str) -> set[str]:
    """Return the names of packages that `pip install 'enginewright[extras]'` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment: dict[str, Any] = {**SYSTEMS[system], "extra": ""}
    names: set[str] = set()
    pending = [*extras.split(",")]
    while pending:
        for text in project["optional-dependencies"][pending.pop()]:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            if requirement.name == "enginewright":
                pending += requirement.extras
            else:
                names.add(requirement.name)
    return names


# fault: Commands | another system than Linux: a failing `pip install` or a traceback | markers in
#   pyproject.toml; preflight's first line | at once
@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize("extras", ASKED)
def test_package_without_wheels_is_not_required(extras: str, system: str) -> None:
    names = find_requirements(extras, system)
    assert not [name for name in names if LINUX_ONLY.fullmatch(name)]
    assert {"typer", "rich", "jinja2"} <= names


def test_on_linux_all_of_it_is() -> None:
    assert {"onnxruntime", "uvloop"} <= find_requirements("preflight", "linux")
    assert {"tensorrt-rtx-cu13-libs", "onnxruntime-ep-nv-tensorrt-rtx-cu13"} <= find_requirements(
        "preflight,rtx", "linux"
    )
    assert "onnxruntime-openvino" in find_requirements("preflight-openvino", "linux")
    assert "onnxruntime-gpu" in find_requirements("preflight-gpu", "linux")
