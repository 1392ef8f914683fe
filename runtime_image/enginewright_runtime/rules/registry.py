"""The operators of the runtime image's ONNX Runtime, as it reports them itself."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

from onnxruntime.capi import onnxruntime_pybind11_state as native


class Parameter(Protocol):
    """An input or output that a schema declares."""

    option: Any


class Schema(Protocol):
    """An operator as ONNX Runtime registers it, with the fields of `onnx.defs.OpSchema`."""

    name: str
    domain: str
    since_version: int
    deprecated: bool
    inputs: list[Parameter]
    outputs: list[Parameter]


@dataclass(frozen=True)
class Registry:
    """Operators by domain and name, oldest version first."""

    schemas: dict[tuple[str, str], tuple[Schema, ...]]

    @cached_property
    def domains(self) -> frozenset[str]:
        """Return the domains that have operators."""
        return frozenset(domain for domain, _ in self.schemas)

    def find(self, domain: str, name: str, version: int) -> Schema | None:
        """Return the operator's schema in a version of its domain; None if it has none."""
        versions = self.schemas.get((domain, name), ())
        return next(
            (schema for schema in reversed(versions) if schema.since_version <= version), None
        )

    def first_version(self, domain: str, name: str) -> int | None:
        """Return the version of its domain that introduced the operator; None if unknown."""
        versions = self.schemas.get((domain, name))
        return versions[0].since_version if versions else None


def of(schemas: Iterable[Schema]) -> Registry:
    """Return a registry of these operators."""
    operators: dict[tuple[str, str], list[Schema]] = defaultdict(list)
    for schema in schemas:
        operators[schema.domain, schema.name].append(schema)
    return Registry(
        {
            key: tuple(
                sorted(versions, key=lambda version: (version.since_version, version.deprecated))
            )
            for key, versions in operators.items()
        }
    )


@cache
def of_runtime() -> Registry:
    """Return the operators of this process's ONNX Runtime."""
    return of(native.get_all_operator_schema())
