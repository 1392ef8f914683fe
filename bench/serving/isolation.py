"""A network namespace with loopback only, and a process namespace, for the whole measurement.

The namespaces end with the process that created them: no server survives the benchmark, and
neither firewall rules nor other listeners of the machine affect it.
"""

import json
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


def read_inherited() -> dict[str, str] | None:
    """Return the values passed to `run_inside`, if this process is inside."""
    values = os.environ.get(_INSIDE)
    return None if values is None else json.loads(values)


def network() -> str:
    """Return the network of the measurement."""
    return _MACHINE if read_inherited() is None else _OWN


def run_inside(arguments: Sequence[str], values: dict[str, str]) -> int | None:
    """Run this program again inside the namespaces, where they are allowed; return its exit code.

    There, `inherited` returns `values`.
    """
    prefix = _prefix()
    if prefix is None:
        print("note: no namespaces here: measured on the machine's loopback", file=sys.stderr)
        return None
    # the namespaces end with this program, and with them the servers
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    command = [*prefix, sys.executable, "-m", "bench.serving", *arguments]
    environment = os.environ | {_INSIDE: json.dumps(values)}
    return subprocess.run(command, check=False, env=environment).returncode


def _prefix() -> list[str] | None:
    """Return the command that creates the namespaces: as root, else with a namespace of users."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    for user in ([], ["--user", "--map-root-user"]):
        prefix = ["unshare", *user, *_NAMESPACES, "--", "sh", "-c", _UP, "sh"]
        if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0:
            return prefix
    return None
