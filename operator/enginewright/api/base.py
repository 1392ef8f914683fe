"""The frozen model that every resource derives from, and object metadata."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP: Final = "enginewright.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


class ApiModel(BaseModel):
    """Immutable; reads and writes the API's camelCase and is snake_case in Python.

    Unknown fields are ignored: the API server has pruned what its schema does not know, and an
    operator must read objects that a newer schema has let through.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class ObjectMeta(ApiModel):
    """The parts of `metadata` that decisions are made from; schemas leave it to the API server."""

    name: str
    namespace: str = ""  # empty for cluster-scoped objects
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
