"""The files that a run writes: verified before it starts, written at its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from enginewright_cli.preflight import outfile
from enginewright_cli.preflight.options import OptionError
from enginewright_cli.preflight.result import Result


@dataclass(frozen=True)
class FileMessage:
    """A message about a written file, or why it could not be written."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Outputs:
    """The requested files."""

    html: Path | None = None
    junit: Path | None = None
    fix: Path | None = None
    manifest: Path | None = None

    def check(self, sources: Sequence[str]) -> None:
        """Verify that all of them can be written. Raises OptionError."""
        for option, path, _, _ in self._reports():
            if path is None:
                continue
            if path.suffix == ".onnx":  # as where the option's value was left out
                raise OptionError(f"{option} {path}: this would be a report; give it another name")
            outfile.check_place(option, path, sources)
        if self.fix is not None:
            if len(sources) != 1:
                raise OptionError(f"--fix {self.fix} writes one model: give exactly one")
            from enginewright_cli.preflight import fix  # noqa: PLC0415 - rarely used

            fix.check(self.fix, sources[0])

    def save_model(self, result: Result, artifact: Callable[[str], Path]) -> list[FileMessage]:
        """Write the model that would be served, while the run's store exists; `artifact` finds it by its key."""
        if self.fix is None:
            return []
        from enginewright_cli.preflight import fix  # noqa: PLC0415 - rarely used

        try:
            log = fix.write(self.fix, result, artifact)
        except fix.FixError as error:
            return [FileMessage(str(error), failed=True)]
        if log is None:
            return [
                FileMessage(f"--fix {self.fix}: not written, since no target would serve the model")
            ]
        return [FileMessage(line) for line in fix.summary(log, self.fix)]

    def save_reports(self, results: Sequence[Result]) -> list[FileMessage]:
        """Write the reports; return what was not written."""
        messages = []
        for option, path, module, name in self._reports():
            if path is None:
                continue
            # imported only if requested: the import takes as long as a cached preflight
            render = getattr(import_module(f"enginewright_cli.preflight.{module}"), name)
            if not (text := render(results)):
                message = f"{option} {path}: not written, since a target would not serve the model"
                messages.append(FileMessage(message))
                continue
            try:
                outfile.write(path, text)
            except OSError as error:
                message = f"{option} {path}: {error.strerror or error}"
                messages.append(FileMessage(message, failed=True))
        return messages

    def _reports(self) -> tuple[tuple[str, Path | None, str, str], ...]:
        return (
            ("--html", self.html, "html.page", "page"),
            ("--junit", self.junit, "junit", "document"),
            ("--manifest", self.manifest, "manifest", "join_manifests"),
        )
