"""The one error that users see: what failed, why, and what to do about it."""

from pathlib import Path

_TAIL_LINES = 15


class ClusterError(Exception):
    """A failure with a remedy; the command line prints it without a traceback."""

    def __init__(self, message: str, *, remedy: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.log = log

    def render(self) -> str:
        """The message as printed: reason, end of the log where there is one, remedy."""
        lines = [f"error: {self}"]
        if self.log is not None:
            lines += [f"  last lines of {self.log}:", *(f"  | {line}" for line in tail(self.log))]
        lines.append(f"remedy: {self.remedy}")
        return "\n".join(lines)


def tail(path: Path, lines: int = _TAIL_LINES) -> list[str]:
    """The last lines of a text file, read from its end; none where it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 400 * lines))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line[:400] for line in text.splitlines()[-lines:]]
