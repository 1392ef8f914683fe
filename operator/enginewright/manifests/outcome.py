"""What became of a revision, kept in an annotation of its ControllerRevision, whose data is immutable."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, ValidationError

from enginewright.manifests.labels import OUTCOME

MESSAGE: Final = 4096  # characters; all annotations of an object may have 256 KiB


class AnnotatedOutcome(BaseModel):
    """What became of an object, in one of its annotations."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    annotation: ClassVar[str]

    def annotations(self) -> dict[str, str]:
        """Return it as the annotation."""
        return {self.annotation: self.model_dump_json(exclude_defaults=True)}

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self | None:
        """Return the outcome in an object's annotations, or None if there is none that can be read."""
        try:
            return cls.model_validate_json(annotations[cls.annotation])
        except (KeyError, ValidationError):
            return None


class RevisionOutcome(AnnotatedOutcome):
    """The last event in the life of a revision."""

    annotation = OUTCOME

    # Promoted: it served with all its pods until `at`, or does since then. Rejected: it failed, and is not
    # tried again. Superseded: it failed, but the spec has changed since.
    state: Literal["Promoted", "Rejected", "Superseded"]
    at: AwareDatetime
    stage: str = ""
    reason: str = ""
    message: Annotated[str, BeforeValidator(lambda text: str(text)[:MESSAGE])] = ""
    exit_code: int = 0
    # by how much its answers differed from those of the revision that served before. Empty: not compared
    answers: Annotated[str, BeforeValidator(lambda text: str(text)[:MESSAGE])] = ""
    # of the spec that requested it: when it was rejected, or last while it serves. Empty: not known
    spec_hash: str = ""
