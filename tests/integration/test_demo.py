"""The demo begins before the virtual environment exists."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_its_stories_need_no_installed_package() -> None:
    command = [sys.executable, "-S", "-B", "-c", "import hack.samples.demo"]  # -S: no site-packages
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
