"""How gateways send requests to a model: the part of an HTTPRoute that a user decides."""

from typing import Annotated, TypeAlias

from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import ATOMIC, ValidationRule, map_list
from enginewright.api.scalars import DnsLabel, ObjectName

Hostname: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        description="A hostname; `*.` in front matches every subdomain.",
    ),
    ValidationRule(
        "self.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')"
        " && !self.matches('^[0-9.]+$')",
        "write a hostname in lowercase, such as models.example.com or *.example.com",
    ),
]


class GatewayReference(ApiModel):
    """A Gateway that accepts requests for the model."""

    name: ObjectName
    """Name of the Gateway."""

    namespace: DnsLabel | None = None
    """Namespace of the Gateway, which must allow routes from the model's; absent: the model's."""

    section_name: ObjectName | None = None
    """Name of one of its listeners; absent: all that match."""


class Route(ApiModel):
    """The model's HTTPRoute, by which gateways send exact shares of the requests to a canary."""

    parent_refs: Annotated[
        tuple[GatewayReference, ...],
        Field(min_length=1, max_length=8),
        map_list("name"),
    ]
    """Gateways that accept requests for the model, at most 8, each named once."""

    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16), ATOMIC] = ()
    """Hostnames of the requests, at most 16; absent: those of the listeners."""
