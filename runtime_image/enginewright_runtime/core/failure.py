"""The exceptions with which anything here says why a model cannot be prepared or served."""

from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import Finding


class StageFailure(Exception):  # noqa: N818 - the outcome of a stage, not only an error
    """A failure with a reason of the contract; its message is for users: thing, cause, remedy.

    Raised by stages, backends and store alike, and turned into a report, a termination message and
    an exit code in one place (`runner`). `nodes` are written "name (OpType)". The remedy of the
    reason is added to `message` unless `remedy` gives a better one ("": the message has it).
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        nodes: tuple[str, ...] = (),
        remedy: str | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        self.reason = reason
        self.nodes = nodes
        self.findings = findings
        self.cause = message.rstrip(". ")  # without the remedy
        last = REMEDIES[reason] if remedy is None else remedy
        self.message = f"{self.cause}; {last}" if last else message
        super().__init__(self.message)


class SessionError(Exception):
    """ONNX Runtime refused the model; the text is its own, for a stage to map to a reason."""
