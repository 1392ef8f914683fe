"""The command line in a process, forked from one that has already imported its modules: see operator_start."""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from enginewright_cli import main

from tests.support.operator_start import FORKS, redirect

_SECONDS: Final = 60


def run_command(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run `enginewright` with these arguments; return its exit code, its output and its errors."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        given = (list(arguments), dict(environment), str(output), str(errors))
        process = FORKS.Process(target=_run, args=given)
        process.start()
        process.join(_SECONDS)
        if (code := process.exitcode) is None:
            process.kill()
            process.join()
            raise AssertionError(f"no end after {_SECONDS} s: {output.read_text()}")
        return code, output.read_text(), errors.read_text()


def _run(arguments: list[str], environment: dict[str, str], output: str, errors: str) -> None:
    redirect(output, sys.stdout)
    redirect(errors, sys.stderr)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["enginewright", *arguments]
    main()
