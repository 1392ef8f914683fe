"""One-line logfmt on stderr for users of `kubectl logs`, with rate-limited progress lines; the operator reads reports."""

import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Final

from enginewright_contract.masking import mask
from typing_extensions import override

LEVEL_VARIABLE: Final = "ENGINEWRIGHT_LOG_LEVEL"  # debug adds the tracebacks of internal errors
# whose loggers are not only for warnings
_OURS: Final = ("enginewright_runtime", "enginewright_serving")
_EVERY_SECONDS: Final = 5.0
_EVERY_SHARE: Final = 0.1


class _Logfmt(logging.Formatter):
    def __init__(self, about: str) -> None:
        super().__init__()
        self._about = about

    @override
    def format(self, record: logging.LogRecord) -> str:
        message = mask(record.getMessage())
        if record.exc_info:
            message += "\n" + mask(self.formatException(record.exc_info))
        return line(record.created, record.levelname.lower(), self._about, message)


def line(created: float, level: str, about: str, message: str) -> str:
    """Return a line of the log, without its end; `created` are seconds since the epoch."""
    stamp = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
    quoted = message.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'ts={stamp} level={level} stage={about} msg="{quoted}"'


def configure(about: str, least: int = logging.INFO) -> None:
    """Send log lines of level `least` and above to stderr, each with `stage=about`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Logfmt(about))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    debug = os.environ.get(LEVEL_VARIABLE, "").lower() == "debug"
    for package in _OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if debug else least)


class TransferProgress:
    """Logs the progress of a transfer every 5 s or 10%, whichever comes first."""

    def __init__(self, logger: logging.Logger, what: str, total: int | None) -> None:
        self._logger = logger
        self._what = what
        self._total = total
        self._done = 0
        self._reported = 0
        self._began = self._reported_at = time.monotonic()

    def add(self, size: int) -> None:
        """Count `size` more bytes."""
        self._done += size
        now = time.monotonic()
        step = (self._total or 0) * _EVERY_SHARE
        late = now - self._reported_at >= _EVERY_SECONDS
        if late or (
            self._total and self._done - self._reported >= step and now - self._reported_at >= 1.0
        ):
            self._report(now)

    def expect(self, total: int) -> None:
        """Set the total number of bytes, once it is known."""
        self._total = total

    def restart(self) -> None:
        """Reset the count, because the transfer restarts."""
        self._done = self._reported = 0

    def _report(self, now: float) -> None:
        self._reported, self._reported_at = self._done, now
        rate = self._done / max(now - self._began, 1e-6)
        of = (
            f" of {format_bytes(self._total)} ({self._done / self._total:.0%})"
            if self._total
            else ""
        )
        self._logger.info(
            "%s: %s%s, %s/s", self._what, format_bytes(self._done), of, format_bytes(rate)
        )


def format_bytes(size: float) -> str:
    """Return a size in bytes for messages: 4.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 node, 2 nodes."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
