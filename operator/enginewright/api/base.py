"""The frozen model that every resource derives from, and object metadata."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import override

GROUP: Final = "enginewright.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


class ApiModel(BaseModel):
    """Immutable; camelCase in the API and snake_case in Python.

    Unknown fields are ignored: the API server prunes fields that its schema does not have, and an
    operator must read objects that were accepted by a newer schema.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    def manifest(self) -> dict[str, Any]:
        """Return it as JSON as its owner wrote it: without unset fields and defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return itself: pydantic copies defaults for every object read, and these are frozen."""
        return self


class ObjectMeta(ApiModel):
    """The parts of `metadata` that the operator uses; its schema is the API server's own."""

    name: str
    namespace: str = ""  # empty for cluster-scoped objects
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
