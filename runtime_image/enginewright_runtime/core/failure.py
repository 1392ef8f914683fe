"""The exceptions with which anything here says why a model cannot be prepared or served."""

from typing import Final, Self

from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding

from enginewright_runtime.core.logs import masked

_MOST_NODES: Final = 100  # kept in a finding


class StageFailure(Exception):  # noqa: N818 - the outcome of a stage, not only an error
    """A failure as a finding of the contract, for users: thing, cause, remedy.

    Raised by stages, backends and store alike, and turned into a report, a termination message and
    an exit code in one place (`runner`). `nodes` are written "name (OpType)". The remedy is that of
    the reason unless `remedy` gives a better one ("": there is none).
    """

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
            # names of files need not be UTF-8
            cause=masked(cause).rstrip(". ").encode(errors="backslashreplace").decode(),
            remedy=remedy and masked(remedy),
            nodes=nodes[:_MOST_NODES],
            node_count=len(nodes),
        )
        self.findings = findings
        super().__init__(self.finding.message)

    @classmethod
    def of(cls, finding: Finding, findings: tuple[Finding, ...] = ()) -> Self:
        """Return the failure that a finding is; `findings` are all for the report."""
        failure = cls(finding.reason, finding.cause, findings=findings)
        failure.finding = finding
        failure.args = (finding.message,)
        return failure

    @property
    def reason(self) -> Reason:
        """Return the reason of the contract."""
        return self.finding.reason

    @property
    def cause(self) -> str:
        """Return the thing and why, without what to do: for another failure's cause."""
        return self.finding.cause

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes at fault."""
        return self.finding.nodes

    @property
    def message(self) -> str:
        """Return it as people read it."""
        return self.finding.message


class SessionError(Exception):
    """ONNX Runtime refused the model; the text is its own, for a stage to map to a reason."""
