"""A network namespace with loopback only, and a process namespace, for all of the measurement.

The namespaces end with the process that asked for them: no server survives the benchmark, and
neither firewall rules nor other listeners of the machine take part in it.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_INSIDE: Final = "BENCH_SERVING_INSIDE"
_OWN: Final = "own namespace, loopback only"
_MACHINE: Final = "the machine's loopback"
_NAMESPACES: Final = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_UP: Final = 'ip link set lo up && exec "$@"'


def network() -> str:
    """Return which network the measurement has."""
    return _OWN if os.environ.get(_INSIDE) == "1" else _MACHINE


def run_inside(arguments: Sequence[str]) -> int | None:
    """Run this program once more inside the namespaces; return its exit code.

    Args:
        arguments: of the program.

    Returns:
        None where it is inside already, or cannot be: then it goes on here.
    """
    if _INSIDE in os.environ:
        return None
    prefix = _prefix()
    if prefix is None:
        print(
            "note: no namespaces without root: measured on the machine's loopback", file=sys.stderr
        )
        return None
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # ends the namespaces too
    command = [*prefix, sys.executable, "-m", "bench.serving", *arguments]
    return subprocess.run(command, check=False, env=os.environ | {_INSIDE: "1"}).returncode


def _prefix() -> list[str] | None:
    """Return the command that creates the namespaces: as root, else with a namespace of users."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    for user in ([], ["--user", "--map-root-user"]):
        prefix = ["unshare", *user, *_NAMESPACES, "--", "sh", "-c", _UP, "sh"]
        if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0:
            return prefix
    return None
