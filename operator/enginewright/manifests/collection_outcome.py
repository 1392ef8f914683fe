"""How a collection ended, kept in an annotation of its Job: pods may be deleted before their Job."""

from collections.abc import Mapping
from typing import Annotated, Self

from enginewright_contract.base import Number
from enginewright_contract.collection import Collected
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, ValidationError

from enginewright.manifests.labels import COLLECTION

_MESSAGE = 4096  # characters; all annotations of an object may have 256 KiB


class CollectionOutcome(BaseModel):
    """Either what was found and removed, or why not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    collected: Collected | None = None  # unless it failed
    limit_bytes: Number | None = None  # of the namespace's artefacts
    empty_since: AwareDatetime | None = None  # since when there is no artefact
    failure: Annotated[str, BeforeValidator(lambda text: str(text)[:_MESSAGE])] = ""

    def annotations(self) -> dict[str, str]:
        """Return it as the annotation of a Job."""
        return {COLLECTION: self.model_dump_json(exclude_defaults=True)}

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self | None:
        """Return the outcome in a Job's annotations, or None if there is none that can be read."""
        try:
            return cls.model_validate_json(annotations[COLLECTION])
        except (KeyError, ValidationError):
            return None
