"""The command lines of `rollback`, `promote`, `pause` and `resume`."""

from typing import Annotated

import typer

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.options import Context, Name, Namespace
from enginewright_cli.reporting import report_errors


def rollback(
    name: Name,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="Revision to go back to. Default: the last good one."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Reject the revision that is being brought up, or the active one, and go back to a good one."""
    with report_errors("rollback"):
        from enginewright_cli.rollout import carry_out  # noqa: PLC0415 - heavy

        _print(name, carry_out.rollback(name, to, namespace, context))


def promote(name: Name, *, namespace: Namespace = None, context: Context = None) -> None:
    """Roll out a new revision without further analysis, also one that was rejected."""
    with report_errors("promote"):
        from enginewright_cli.rollout import carry_out  # noqa: PLC0415 - heavy

        _print(name, carry_out.promote(name, namespace, context))


def pause(name: Name, *, namespace: Namespace = None, context: Context = None) -> None:
    """Pause a model's rollouts: a new revision goes no further."""
    with report_errors("pause"):
        from enginewright_cli.rollout import carry_out  # noqa: PLC0415 - heavy

        _print(name, carry_out.pause(name, namespace, context, paused=True))


def resume(name: Name, *, namespace: Namespace = None, context: Context = None) -> None:
    """Continue a model's rollouts."""
    with report_errors("resume"):
        from enginewright_cli.rollout import carry_out  # noqa: PLC0415 - heavy

        _print(name, carry_out.pause(name, namespace, context, paused=False))


def _print(name: str, lines: list[str]) -> None:
    output.write("\n".join(f"{visible(name)}: {visible(line)}" for line in lines))
