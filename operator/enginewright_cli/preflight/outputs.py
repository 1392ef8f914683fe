"""The files that a run is asked to write: refused before it begins, or reported at its end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from enginewright_cli.preflight import outfile
from enginewright_cli.preflight.options import OptionError
from enginewright_cli.preflight.result import Result


@dataclass(frozen=True)
class FileMessage:
    """What became of a file."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Outputs:
    """Where to write what; None: nowhere."""

    html: Path | None = None
    junit: Path | None = None
    fix: Path | None = None

    def check(self, sources: Sequence[str]) -> None:
        """See to it that all of it can be written.

        Raises:
            OptionError: it cannot; says what to do.
        """
        for option, path in (("--html", self.html), ("--junit", self.junit)):
            if path is not None:
                outfile.check_folder(option, path)
        if self.fix is not None:
            if len(sources) != 1:
                raise OptionError(f"--fix {self.fix}: it writes one model, so give one")
            from enginewright_cli.preflight import fix  # noqa: PLC0415 - seldom asked for

            fix.check(self.fix, sources[0])

    def save_model(self, result: Result, artifact: Callable[[str], Path]) -> list[FileMessage]:
        """Write the model that would be served, while the run's store is there.

        Args:
            result: of the run.
            artifact: from the key of a prepared model to its folder.
        """
        if self.fix is None:
            return []
        from enginewright_cli.preflight import fix  # noqa: PLC0415 - seldom asked for

        try:
            log = fix.write(self.fix, result, artifact)
        except fix.FixError as error:
            return [FileMessage(str(error), failed=True)]
        if log is None:
            return [
                FileMessage(f"--fix {self.fix}: nothing is written, for no target would serve it")
            ]
        return [FileMessage(line) for line in fix.summary(log, self.fix)]

    def save_reports(self, results: Sequence[Result]) -> list[FileMessage]:
        """Write the renderings."""
        return list(self._reports(results))

    def _reports(self, results: Sequence[Result]) -> Iterator[FileMessage]:
        for option, path, module, name in (
            ("--html", self.html, "html.page", "page"),
            ("--junit", self.junit, "junit", "document"),
        ):
            if path is None:
                continue
            # imported when it is asked for, as a preflight that is cached takes no longer than that
            render = getattr(import_module(f"enginewright_cli.preflight.{module}"), name)
            try:
                outfile.write(path, render(results))
            except OSError as error:
                yield FileMessage(f"{option} {path}: {error.strerror or error}", failed=True)
