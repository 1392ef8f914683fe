"""The frozen model that every message derives from, and canonical JSON, which keys are made of."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Immutable; unknown fields are ignored, so that an older reader understands a newer writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> str:
        """Return compact JSON without unset or null fields."""
        return self.model_dump_json(exclude_none=True)


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
