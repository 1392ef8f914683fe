"""What can be pasted: options of the command that mend a finding.

The stages propose what a resource would say; whoever runs preflight needs the same as an option.
"""

import shlex

from enginewright.contract.report import Proposal
from enginewright.contract.task import ShapeProfile


def suggested(proposal: Proposal | None) -> tuple[str, ...]:
    """Return the options that say what is proposed; () where nothing is."""
    return tuple(
        f"--shapes {shlex.quote(option(each))}"
        for each in (proposal.shapes if proposal else ())
        if each.input.isprintable()
    )


def option(profile: ShapeProfile) -> str:
    """Return a profile as `--shapes` takes it, the inverse of `options.shape`."""
    corners = (profile.min, profile.opt, profile.max)
    return f"{profile.input}=" + ":".join("x".join(map(str, sizes)) for sizes in corners)
