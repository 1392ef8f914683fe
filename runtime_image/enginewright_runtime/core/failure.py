"""The exceptions that report why a model cannot be prepared or served."""

from typing import Final, Self

from enginewright_contract.masking import mask
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

_MOST_NODES: Final = 100  # kept in a finding


class StageFailure(Exception):  # noqa: N818 - the outcome of a stage, not only an error
    """A failure as a finding of the contract, which `runner` reports; `remedy` replaces that of the reason, "" omits it."""

    def __init__(
        self,
        reason: Reason,
        cause: str,
        *,
        nodes: tuple[str, ...] = (),
        remedy: str | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        self.finding = Finding(
            reason=reason,
            # file names need not be valid UTF-8
            cause=mask(cause).rstrip(". ").encode(errors="backslashreplace").decode(),
            remedy=remedy and mask(remedy),
            nodes=nodes[:_MOST_NODES],
            node_count=len(nodes),
        )
        self.findings = findings
        super().__init__(self.finding.message)

    @classmethod
    def of(cls, finding: Finding, findings: tuple[Finding, ...] = ()) -> Self:
        """Return the failure of a finding; `findings` are all findings for the report."""
        failure = cls(finding.reason, finding.cause, findings=findings)
        failure.finding = finding
        failure.args = (finding.message,)
        return failure

    @property
    def reason(self) -> Reason:
        """The reason of the contract."""
        return self.finding.reason

    @property
    def cause(self) -> str:
        """The cause without the remedy, for another failure's cause."""
        return self.finding.cause

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that cause the failure."""
        return self.finding.nodes

    @property
    def message(self) -> str:
        """The message for users."""
        return self.finding.message


class SessionError(Exception):
    """ONNX Runtime rejected the model, with its own message, which a stage maps to a reason."""
