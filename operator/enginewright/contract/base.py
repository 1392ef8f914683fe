"""The frozen model that every message derives from, bounds of its fields, and canonical JSON, which keys are made of."""

import json
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TEXT_LENGTH: Final = 256  # characters of a name, or of a line, that a status takes
LIST_LENGTH: Final = 16  # of them in one field
Text: TypeAlias = Annotated[str, Field(max_length=TEXT_LENGTH)]
Digest: TypeAlias = Annotated[str, Field(max_length=128)]


def _cut(length: int) -> BeforeValidator:
    return BeforeValidator(
        lambda value: value[:length] if isinstance(value, str | list | tuple) else value
    )


# Of any writer: what is longer is cut, since the rest of the message counts all the same
CutText: TypeAlias = Annotated[Text, _cut(TEXT_LENGTH)]
CutTexts: TypeAlias = Annotated[
    tuple[CutText, ...], Field(max_length=LIST_LENGTH), _cut(LIST_LENGTH)
]


class Message(BaseModel):
    """Immutable; unknown fields are ignored, so that an older reader understands a newer writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> str:
        """Return compact JSON without unset or null fields."""
        return self.model_dump_json(exclude_none=True)


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
