"""A containerd of a test's own, which pulls and mounts images as that of a node does."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import run_program
from tests.support.waiting import Deadline

_START_SECONDS: Final = 30.0
_CONFIG: Final = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
"""


@dataclass(frozen=True)
class Containerd:
    folder: Path  # with a short path, as addresses of sockets have to be

    def run(self, *arguments: str) -> str:
        done = run_program(
            ["ctr", "--address", str(self.folder / "socket"), *arguments], timeout=60
        )
        return done.stdout

    @contextmanager
    def mount_image(self, reference: str) -> Iterator[Path]:
        """Pull an image from a registry without TLS, and mount it."""
        folder = self.folder / "mounted"
        folder.mkdir()
        self.run("images", "pull", "--plain-http", reference)
        self.run("images", "mount", reference, str(folder))
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def containerd() -> Iterator[Containerd]:
    if os.getuid() != 0 or not (shutil.which("containerd") and shutil.which("ctr")):
        pytest.skip("NOT TESTED, mounting an image takes containerd and root")
    with tempfile.TemporaryDirectory() as name:
        daemon = Containerd(Path(name))
        config = daemon.folder / "config.toml"
        config.write_text(_CONFIG.format(folder=name))
        process = subprocess.Popen(
            ["containerd", "--config", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(process, daemon.folder / "socket")
            yield daemon
        finally:
            process.terminate()
            process.wait(20)


def _wait(process: "subprocess.Popen[bytes]", socket: Path) -> None:
    deadline = Deadline(_START_SECONDS)
    while not socket.exists():
        assert process.poll() is None, "containerd ended"
        assert not deadline.is_over(), "containerd does not listen"
        time.sleep(0.05)
