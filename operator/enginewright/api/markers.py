"""Markers for what a Kubernetes schema can express and Python's type hints cannot.

Markers are placed in `Annotated[...]` beside a field's type and add their keyword to the JSON schema
from which the custom resource definitions are generated. They do not affect parsing: the API server
has validated the objects that the operator reads.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

RULES_KEYWORD = "x-kubernetes-validations"
LIST_TYPE_KEYWORD = "x-kubernetes-list-type"
LIST_KEYS_KEYWORD = "x-kubernetes-list-map-keys"
INT_OR_STRING_KEYWORD = "x-kubernetes-int-or-string"
PRESERVE_KEYWORD = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True)
class ValidationRule:
    """A CEL rule and a sentence that says what to write instead."""

    rule: str
    message: str
    message_expression: str | None = None  # CEL that gives a better message; `message` if it fails
    field_path: str | None = None  # field that the error is reported for, relative to the rule's
    reason: str | None = None  # instead of FieldValueInvalid

    def keyword(self) -> dict[str, str]:
        """Return one entry of `x-kubernetes-validations`."""
        entry = {"rule": self.rule, "message": self.message}
        if self.message_expression:
            entry["messageExpression"] = self.message_expression
        if self.field_path:
            entry["fieldPath"] = self.field_path
        if self.reason:
            entry["reason"] = self.reason
        return entry

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Append this rule to the field's schema."""
        schema = handler(core_schema)
        return {**schema, RULES_KEYWORD: [*schema.get(RULES_KEYWORD, []), self.keyword()]}


def rules(*entries: ValidationRule) -> dict[str, Any]:
    """Return `json_schema_extra` for rules about an object."""
    return {RULES_KEYWORD: [entry.keyword() for entry in entries]}


def short_name(why: str) -> dict[str, Any]:
    """Return `json_schema_extra` for objects whose name is part of labels or of other names."""
    return rules(
        ValidationRule(
            "size(self.metadata.name) <= 63"
            " && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            f"{why}: write at most 63 lowercase letters, digits and '-', beginning and ending with"
            " a letter or digit",
            field_path=".metadata.name",
        )
    )


@dataclass(frozen=True)
class _Keywords:
    """Replaces or extends the schema of the type that it marks."""

    extra: tuple[tuple[str, Any], ...]
    replace: bool = False

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the marked schema."""
        marked = handler(core_schema)
        if self.replace:
            marked = {name: marked[name] for name in ("description",) if name in marked}
        return {**marked, **dict(self.extra)}


ATOMIC = _Keywords(((LIST_TYPE_KEYWORD, "atomic"),))
"""A list with one owner, whose order is significant."""

INT_OR_STRING = _Keywords(((INT_OR_STRING_KEYWORD, True),), replace=True)
FREE_FORM = _Keywords((("type", "object"), (PRESERVE_KEYWORD, True)), replace=True)
"""An object of a built-in Kubernetes type, validated where Kubernetes reads it."""

INT32 = _Keywords((("format", "int32"),))
INT64 = _Keywords((("format", "int64"),))


def map_list(*keys: str) -> _Keywords:
    """Mark a list whose entries are distinguished by `keys`: no duplicates, merged by key."""
    return _Keywords(((LIST_TYPE_KEYWORD, "map"), (LIST_KEYS_KEYWORD, list(keys))))
