"""Remedies for a reader who has this command and perhaps no cluster: its options beside fields of a spec, and no objects of a cluster.

Stages write remedies for the owner of an InferenceModel, whose Job they usually run in.
"""

import re
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, remedy
from enginewright_contract.task import ENGINE_STAGES

# instead of the reason's remedy
_USUAL: Final = {
    Reason.BUILD_FAILED: "replace the operators that the builder rejects, or choose another target",
    Reason.PROVIDER_REFUSED: "choose another target",
    Reason.PARITY_UNKNOWN: (
        "give real inputs in which these parts vary, two or more of one size, by --samples or --calibration, or omit"
        " --precision; a deployment accepts them by acceptUnjudged in spec.parity.outputs"
    ),
    Reason.SOURCE_UNREACHABLE: "check the path or address, and that this machine reaches it",
    Reason.SOURCE_CHANGED: "restore the file, or check the one that is there now",
    Reason.VERSION_MISMATCH: "install enginewright and its extras again, in an environment of its own",
    Reason.DRIVER_MISSING: "run on a machine with NVIDIA's driver, or choose another target",
    Reason.ENGINE_CORRUPT: "run it again; if it recurs, report this with the output of --json",
    Reason.ENGINE_VERSION_MISMATCH: "choose another target",
    Reason.ENGINE_INCOMPATIBLE: "choose another target",
}
# instead of any
_ALWAYS: Final = {
    Reason.EXTENSION_FAILED: "install enginewright and its extras again, or leave out --extension",
    Reason.STORE_UNAVAILABLE: "set TMPDIR to a writable folder",
    Reason.STORAGE_FULL: (
        "free space in the folder for temporary files, or set TMPDIR to a writable folder with more"
        " space"
    ),
    Reason.OUT_OF_MEMORY: "free memory; with several models, lower --jobs",
    Reason.BUILD_OUT_OF_MEMORY: "free memory, or run on a machine with more",
    Reason.TIMEOUT: "retry on a machine with less load, or raise --timeout and spec.build.timeout",
    Reason.PROCESSOR_MISMATCH: "run preflight on a processor of the kind that will serve",
    Reason.BACKEND_CRASHED: "choose another target, or report its last output to its maintainers",
    Reason.INTERNAL_ERROR: "report this with the output of --json",
}
# the option that stands for a field
_OPTIONS: Final = {
    "spec.shapes": "--shapes",
    "spec.precision": "--precision",
    "spec.parity.samples": "--samples",
    "spec.quantization.calibration": "--calibration",
    "spec.quantization.rest": "--rest",
    "spec.targetOpset": "--target-opset",
    "spec.fallback": "--budget",
    "spec.extensions": "--extension",
    "spec.processing": "--before and --after",
}
_FIELD: Final = re.compile(rf"(?:{'|'.join(map(re.escape, _OPTIONS))})(?![\w\[]|\.\w)")
_CREDENTIALS: Final = re.compile(r"\bSecret\b|\bsecretRef\b|\bcreate secret\b")
_WITHOUT_CREDENTIALS: Final = "download the model and give the file: preflight has no credentials but those in the environment"
_WORDS: Final = (  # of a cluster, and what they are here
    (
        re.compile(
            r"\badd the library that implements them to spec\.extensions \(for tokenizers and image decoders an entry"
            r" with type (\w+)\)"
        ),
        (
            r"for tokenizers and image decoders, give --extension \1; a library of your own is loaded in a cluster only,"
            r" where the model's spec names it"
        ),
    ),
    (re.compile(r"\ban entry of spec\.extensions with type (\w+)"), r"--extension \1"),
    (re.compile(r"\bin spec\.backends(?: for accelerators of this class)?"), "with --target"),
    (re.compile(r"\ban accelerator class\b"), "a target"),
    (re.compile(r"\baccelerator class\b"), "target"),
    (re.compile(r" for user 65532\b"), ""),
    (re.compile(r"\bthe volume\b"), "the folder"),
    (re.compile(r"\bthe pod's node\b"), "this machine"),
    (re.compile(r", and hide neither folder from the pod"), ""),
)


def advise(finding: Finding) -> str:
    """Return the remedy for a finding outside a cluster."""
    if finding.reason in _ALWAYS:
        return _ALWAYS[finding.reason]
    usual = {None, finding.reason.remedy, remedy(finding.reason, ENGINE_STAGES[0])}
    if finding.reason in _USUAL and finding.remedy in usual:
        return _USUAL[finding.reason]
    return translate(finding.advice)


def translate(text: str) -> str:
    """Return a stage's remedy in this command's words; the fields stay, since the model's spec will have them."""
    if _CREDENTIALS.search(text):
        return _WITHOUT_CREDENTIALS
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return _FIELD.sub(lambda field: f"{_OPTIONS[field[0]]} ({field[0]})", text)
