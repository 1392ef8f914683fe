"""What to do about failures of a machine that is no cluster."""

from typing import Final

from enginewright.contract.reasons import Reason

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
