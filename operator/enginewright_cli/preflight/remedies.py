"""Remedies of findings outside a cluster, and the options that apply them.

The stages propose fields of a resource; preflight shows the same as options that can be pasted.
"""

import shlex
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Proposal
from enginewright_contract.task import ShapeProfile

REMEDIES_HERE: Final = {
    Reason.STORE_UNAVAILABLE: "set TMPDIR to a writable folder",
    Reason.STORAGE_FULL: (
        "free space in the folder for temporary files, or set TMPDIR to a writable folder with more"
        " space"
    ),
    Reason.OUT_OF_MEMORY: "free memory; with several models, lower --jobs",
    Reason.TIMEOUT: "retry on a machine with less load, or raise --timeout and spec.build.timeout",
    Reason.PROCESSOR_MISMATCH: "run preflight on a processor of the kind that will serve",
    Reason.BACKEND_CRASHED: "choose another target, or report its last output to its maintainers",
    Reason.INTERNAL_ERROR: "report this with the output of --json",
}


def suggested(proposal: Proposal | None) -> tuple[str, ...]:
    """Return the options that apply a proposal; () without one."""
    return tuple(
        f"--shapes {shlex.quote(option(each))}"
        for each in (proposal.shapes if proposal else ())
        if each.input.isprintable()
    )


def option(profile: ShapeProfile) -> str:
    """Return a profile as `--shapes` takes it, the inverse of `options.shape`."""
    corners = (profile.min, profile.opt, profile.max)
    return f"{profile.input}=" + ":".join("x".join(map(str, sizes)) for sizes in corners)
