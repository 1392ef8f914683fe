"""Failed Jobs as a status records them."""

from datetime import datetime
from typing import Annotated

from enginewright_contract.base import Text
from enginewright_contract.report import render
from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import INT32


class JobFailure(ApiModel):
    """Why a Job failed, kept after the Job is deleted, so that a permanent failure is not repeated."""

    stage: Text = ""
    """Stage that failed; empty when the Job failed before one began."""

    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word for programs, such as DigestMismatch."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, as a sentence for people."""

    remedy: Annotated[str, Field(max_length=32768)] = ""
    """What to do about it, for people."""

    time: datetime | None = None
    """When it failed."""

    attempts: Annotated[int, INT32] = 1
    """How many Jobs have failed for these inputs."""

    lasting: bool = False
    """Whether the same inputs would fail again, so that they are not retried."""

    store: Text = ""
    """Place and size of the store, if that was the cause: the next attempt is due as soon as they change."""

    @property
    def sentence(self) -> str:
        """Return cause and remedy as one sentence, as in conditions."""
        return render(self.message, self.remedy)
