"""What to do about a finding on a machine that is no cluster, and the options that do it.

The stages propose what a resource would say; whoever runs preflight needs the same as an option that
can be pasted.
"""

import shlex
from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import Proposal
from enginewright.contract.task import ShapeProfile

REMEDIES_HERE: Final = {
    Reason.STORE_UNAVAILABLE: "set TMPDIR to a folder that can be written",
    Reason.STORAGE_FULL: (
        "free space where temporary files lie, or set TMPDIR to a folder with more that can be"
        " written"
    ),
    Reason.OUT_OF_MEMORY: "free memory; with several models, lower --jobs",
    Reason.TIMEOUT: "try again on a machine with less load, or raise --timeout and spec.build.timeout",
    Reason.PROCESSOR_MISMATCH: "run preflight on a processor of the kind that is to serve",
    Reason.BACKEND_CRASHED: "choose another target, or report its last output to its maintainers",
    Reason.INTERNAL_ERROR: "report this with what --json prints",
}


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
