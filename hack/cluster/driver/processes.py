"""Long-lived processes: started detached, identified by pid and start time.

A pid without its start time may have been reused, and a name does not identify a process.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from driver.errors import ClusterError
from driver.layout import Cluster


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, unless it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def run(*command: str | Path, timeout: float = 120, input_text: str | None = None) -> str:
    """Run a command to completion and return its output.

    Raises:
        ClusterError: It failed; the message contains the end of its output.
    """
    shown = " ".join(str(part) for part in command)
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            input=input_text,
        )
    except FileNotFoundError:
        raise ClusterError(
            f"the program {command[0]} was not found; install it and try again"
        ) from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"`{shown}` did not finish within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise ClusterError(f"`{shown}` failed: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


class Processes:
    """The processes of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = cluster.folder / "processes"

    def alive(self, name: str) -> bool:
        """Return whether the process of this name is running."""
        return self.pid(name) is not None

    def names(self) -> list[str]:
        """Return the names of all processes that were started, running or not."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self._cluster.logs / f"{name}.log"

    def start(self, name: str, command: Sequence[str | Path], *, enter: Sequence[str] = ()) -> bool:
        """Start a process unless it is running; return whether it was started.

        `enter` are nsenter's options for the namespaces that it runs in. (`ip netns exec` would
        hide the cgroups, as it mounts its own /sys.)
        """
        if self.alive(name):
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cluster.logs.mkdir(parents=True, exist_ok=True)
        entered = ["nsenter", *enter, "--"] if enter else []
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*entered, *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        mark = {"pid": process.pid, "start": start_time(process.pid)}
        path = self._folder / f"{name}.json"
        path.with_suffix(".tmp").write_text(json.dumps(mark))
        path.with_suffix(".tmp").rename(path)
        return True

    def check(self, name: str, seconds: float = 1.0) -> None:
        """Fail if a process ends within its first `seconds`.

        Raises:
            ClusterError: With the end of its log.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.alive(name):
                raise ClusterError(
                    f"{name} ended right after its start; the end of its log:\n{self.tail(name)}"
                )
            time.sleep(0.1)

    def wait(self, name: str, what: str, check: Callable[[], bool], seconds: float) -> None:
        """Poll `check` until it is true, as long as the process `name` is running.

        Raises:
            ClusterError: The process ended, or `seconds` have passed; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not (alive := self.alive(name)) or not check():
            if not alive or time.monotonic() > deadline:
                failure = "ended before" if not alive else f"did not, in {seconds:.0f} s, reach"
                raise ClusterError(
                    f"{name} {failure} {what}; run `up` again, or `down` first; "
                    f"the end of its log ({self.log(name)}):\n{self.tail(name)}"
                )
            time.sleep(0.1)

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the end of a process's log."""
        try:
            text = self.log(name).read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, name: str, seconds: float = 10) -> None:
        """End a process: SIGTERM, and SIGKILL after `seconds`."""
        pid = self.pid(name)
        if pid is not None:
            end([pid], seconds)
        (self._folder / f"{name}.json").unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Kill a process as a crash would; it stays recorded, so the next `up` restarts it."""
        pid = self.pid(name)
        if pid is not None:
            end([pid], 0)

    def pid(self, name: str) -> int | None:
        """Return the pid of a running process."""
        try:
            mark = json.loads((self._folder / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        pid = int(mark["pid"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # our child if this command started it
        return pid if _runs((pid, mark["start"])) else None


def end(pids: Iterable[int], seconds: float) -> None:
    """End processes: SIGTERM unless `seconds` are 0, and SIGKILL to those still running after them."""
    waiting = {pid: start_time(pid) for pid in pids}
    if seconds > 0:
        _signal(waiting, signal.SIGTERM)
        _await(waiting, seconds)
    _signal(waiting, signal.SIGKILL)
    _await(waiting, 10)


def _runs(process: tuple[int, int | None]) -> bool:
    pid, started = process
    return started is not None and start_time(pid) == started


def _signal(pids: Mapping[int, int | None], number: int) -> None:
    for pid, started in pids.items():
        if _runs((pid, started)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _await(pids: Mapping[int, int | None], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not any(map(_runs, pids.items())):
            return
        time.sleep(0.05)
