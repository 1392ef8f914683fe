"""Log lines as logfmt, each with its controller and key, which a context variable carries into all code below."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from typing_extensions import override

_about: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039 - never changed
_LEVELS: Final = ("debug", "info", "warning", "error")
# what of kopf says with a traceback of its own code that a watch has ended; our process says it in a sentence
_ENDS: Final = ("kopf._core.reactor.orchestration", "kopf._core.reactor.running")
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+,*()[]<>"
)


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Put `fields` into every line that is logged inside."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class LogfmtFormatter(logging.Formatter):
    """`ts=… level=… logger=… controller=… namespace=… name=… msg="…"`; a traceback is one field."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_about.get(),
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return " ".join(f"{name}={_quote(value)}" for name, value in fields.items())


class Sparse(logging.Filter):
    """Lets one line of kopf through every ten seconds: ten watches that reconnect would log 300 a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0
        self._dropped = 0

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("kopf"):
            return True
        if record.created < self._next:
            self._dropped += 1
            return False
        if self._dropped:
            record.msg = f"{record.getMessage()} (and {self._dropped} lines more before)"
            record.args = ()
        self._next, self._dropped = record.created + 10.0, 0
        return True


def configure_logging(level: str) -> None:
    """Log to stderr from `level` on; for libraries, from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogfmtFormatter())
    handler.addFilter(Sparse())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("enginewright").setLevel(level.upper())
    for name in _ENDS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def check_level(level: str) -> str:
    """Return `level` in lower case; ValueError when it is none."""
    if level.lower() not in _LEVELS:
        raise ValueError(f"{level!r} is no log level; use one of {', '.join(_LEVELS)}")
    return level.lower()


def _quote(value: str) -> str:
    if value and _PLAIN.issuperset(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
