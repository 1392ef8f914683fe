"""The frozen base model of every message, limits of its fields, and the canonical JSON that keys are hashed from."""

import json
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

TEXT_LENGTH: Final = 256  # maximum characters of a name or a line in a status
LIST_LENGTH: Final = 16  # maximum number of them in one field
Text: TypeAlias = Annotated[str, Field(max_length=TEXT_LENGTH)]
Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 53)]  # exact in every JSON implementation
Seconds: TypeAlias = Annotated[float, Field(ge=0, lt=1e9)]
Digest: TypeAlias = Annotated[str, Field(max_length=128)]


def _cut(length: int) -> BeforeValidator:
    return BeforeValidator(
        lambda value: value[:length] if isinstance(value, str | list | tuple) else value
    )


# A value that is too long is truncated rather than rejected: the rest of the message is still valid
CutText: TypeAlias = Annotated[Text, _cut(TEXT_LENGTH)]
CUT_LIST: Final = _cut(LIST_LENGTH)
CutTexts: TypeAlias = Annotated[tuple[CutText, ...], Field(max_length=LIST_LENGTH), CUT_LIST]


class Message(BaseModel):
    """Immutable; unknown fields are ignored, so that an older reader understands a newer writer."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        defer_build=True,
        # a field `schema` has an alias, because pydantic's models have a method of this name
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def to_json(self) -> str:
        """Return compact JSON without unset or null fields."""
        return self.model_dump_json(exclude_none=True)


def first_problem(error: ValidationError) -> str:
    """Return the field and the reason of the first problem, without what was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
