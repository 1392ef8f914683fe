"""How a collection ended, kept in an annotation of its Job: pods may be deleted before their Job."""

from typing import Annotated

from enginewright_contract.base import Number
from enginewright_contract.collection import Collected
from pydantic import AwareDatetime, BeforeValidator

from enginewright.manifests.labels import COLLECTION
from enginewright.manifests.outcome import MESSAGE, AnnotatedOutcome


class CollectionOutcome(AnnotatedOutcome):
    """Either what was found and removed, or why not."""

    annotation = COLLECTION

    collected: Collected | None = None  # unless it failed
    limit_bytes: Number | None = None  # of the namespace's artefacts
    empty_since: AwareDatetime | None = None  # since when there is no artefact
    failure: Annotated[str, BeforeValidator(lambda text: str(text)[:MESSAGE])] = ""
