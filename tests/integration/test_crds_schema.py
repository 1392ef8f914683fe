"""The generated definitions: whole, bounded, described, and never behind the models."""

import subprocess
import sys
from pathlib import Path

from tests.unit.test_crds_schema import REPOSITORY


def test_the_files_match_the_models() -> None:
    subprocess.run([str(REPOSITORY / "hack/crds"), "--check"], check=True, timeout=60)


def test_drift_is_reported(tmp_path: Path) -> None:
    """In a copy of the tree, since the check looks at the tree it lies in."""
    for name in ("hack/crds.py", "crds", "charts/enginewright/files/crds"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(REPOSITORY / name), str(target)], check=True)
    changed = tmp_path / "crds/enginewright.dev_inferencemodels.yaml"
    changed.write_text(changed.read_text().replace("shortNames", "longNames"))
    (tmp_path / "crds/leftover.yaml").write_text("a: b\n")
    check = [sys.executable, str(tmp_path / "hack/crds.py"), "--check"]
    reported = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert reported.returncode == 1
    assert "-    longNames:" in reported.stdout
    assert "+    shortNames:" in reported.stdout
    assert "-a: b" in reported.stdout
    assert "run hack/crds" in reported.stderr
    subprocess.run(check[:-1], check=True, timeout=60)
    assert subprocess.run(check, check=False, timeout=60).returncode == 0
    assert not (tmp_path / "crds/leftover.yaml").exists()
