"""The memory of a process, as the kernel counts it."""

from pathlib import Path


def memory_of(pid: int, field: str = "VmRSS") -> int:
    """Return a field of a process's memory in bytes: VmRSS, or VmHWM, the peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
