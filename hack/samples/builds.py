"""Builds that take minutes on a fresh machine: they run in the background, and report their progress."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Final

from hack.samples.magika import REPOSITORY
from hack.samples.shell import DemoError, Shell

_REPORT_SECONDS: Final = 15.0
_TAIL_LINES: Final = 30  # of the output of a failed build


class Build:
    """A command that runs at low priority while the demo goes on."""

    def __init__(self, title: str, *command: str) -> None:
        self.title = title
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open until the demo ends
        self.process = subprocess.Popen(
            ["nice", *command], cwd=REPOSITORY, stdout=self._output, stderr=subprocess.STDOUT
        )

    def lines(self) -> list[str]:
        """Return its output so far, without seeking in the file that it writes."""
        with open(f"/proc/self/fd/{self._output.fileno()}", "rb") as output:
            return output.read().decode(errors="replace").splitlines()


def wait_for(builds: Sequence[Build], shell: Shell) -> None:
    """Report the builds' progress until they end.

    Raises:
        DemoError: One failed; its last lines are in the message, and the others have been ended.
    """
    began = reported = time.monotonic()
    while True:
        running = [build for build in builds if build.process.poll() is None]
        if failed := next((build for build in builds if build.process.returncode), None):
            _end(running)
            raise DemoError(_explain(failed))
        if not running:
            break
        if time.monotonic() - reported > _REPORT_SECONDS:
            reported = time.monotonic()
            for build in running:
                now = next(iter(build.lines()[-1:]), "starting")
                print(f"  {reported - began:4.0f} s  {build.title}: {now}", file=sys.stderr)
        time.sleep(0.2)
    shell.times.append((" and ".join(build.title for build in builds), time.monotonic() - began))


def _end(builds: Sequence[Build]) -> None:
    for build in builds:
        build.process.terminate()
    for build in builds:
        build.process.wait()


def _explain(failed: Build) -> str:
    tail = "\n".join(failed.lines()[-_TAIL_LINES:])
    return f"{failed.title}: `{failed.process.args!r}` failed:\n{tail}"
