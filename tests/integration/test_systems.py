"""Systems other than Linux: `pip install` does not fail, and the command says what it needs.

What they lack is taken away from a Python of this system, after its own library has been imported.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.programs import run_program

if TYPE_CHECKING:
    from subprocess import CompletedProcess

ELSEWHERE = """
import asyncio, ctypes, importlib, os, platform, select, signal, socket, subprocess, sys, sysconfig, tempfile
sysconfig.get_config_vars()
import ssl, urllib.request
import aiohttp, kubernetes.aio.client, kubernetes.aio.config, rich.console, rich.progress, typer, typer.main  # which look at the system as they are imported

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ImportError(f"No module named {{name!r}}", name=name)

for name in {hidden}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for module, names in {lacking}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
signal.Signals = [each for each in signal.Signals if each.name in {signals}]
sys.platform = {system!r}
from enginewright_cli import main
sys.argv = ["enginewright", *{arguments}]
main()
"""


LACKING = {
    "darwin": {
        "hidden": {"uvloop", "onnxruntime", "tensorrt_rtx"},
        "lacking": {
            "os": ["memfd_create", "pidfd_open", "sched_getaffinity"],
            "signal": ["pidfd_send_signal"],
        },
        "signals": {"SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"},
    },
    "win32": {
        "hidden": {"uvloop", "onnxruntime", "tensorrt_rtx", "resource", "fcntl", "pwd", "grp"},
        "lacking": {
            "os": [
                "fork",
                "killpg",
                "memfd_create",
                "pidfd_open",
                "pread",
                "sched_getaffinity",
                "setsid",
                "sysconf",
                "uname",
                "wait4",
            ],
            "signal": ["SIGHUP", "SIGKILL", "pidfd_send_signal"],
            "select": ["poll", "epoll"],
            "socket": ["AF_UNIX", "send_fds", "recv_fds"],
        },
        "signals": {"SIGINT", "SIGTERM"},
    },
}


def elsewhere(system: str, *arguments: str) -> "CompletedProcess[str]":
    """Run the command with what another system lacks taken away."""
    script = ELSEWHERE.format(system=system, arguments=list(arguments), **LACKING[system])
    return run_program([sys.executable, "-c", script], timeout=300, code=None)


# fault: Commands | another system than Linux: a failing `pip install` or a traceback
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_preflight_says_in_its_first_line_that_it_needs_linux(system: str) -> None:
    done = elsewhere(system, "preflight", "model.onnx")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == (
        "enginewright preflight: it runs the stages of pods, which require Linux, not"
        f" {system}: run it in a container, in WSL 2 or in CI (docs/preflight.md)\n"
    )


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_other_commands_are_there(system: str) -> None:
    for command in (["--help"], ["plan", "--help"], ["engine", "inspect", "--help"]):
        done = elsewhere(system, *command)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_plan_without_a_cluster_names_the_missing_package(system: str, tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(
        "apiVersion: enginewright.dev/v1alpha1\nkind: InferenceModel\nmetadata: {name: m}\n"
        "spec: {source: {uri: https://models.example/m.onnx}}\n"
    )
    done = elsewhere(system, "plan", "-f", str(file), "--offline")
    assert done.returncode == 2
    assert "cannot be probed" in done.stderr
    assert f"require Linux, not {system}:" in done.stderr
    assert "--facts FILE" in done.stderr
    assert "Traceback" not in done.stderr
