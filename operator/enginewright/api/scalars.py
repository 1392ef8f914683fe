"""Strings with a grammar: durations, shares, numbers, quantities, digests, addresses.

Numbers are strings, since Kubernetes APIs do not use floats. Each grammar is a CEL rule rather than a
`pattern`, because a rule's message can say what to write.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Annotated, Final, TypeAlias

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.schemes import SCHEMES
from pydantic import Field

from enginewright.api.markers import FREE_FORM, INT_OR_STRING, ValidationRule

_DURATION: Final = "^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$"
_NUMBER: Final = "^[-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]{1,2})?$"
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}

DURATION_RULE: Final = ValidationRule(
    f"size(self) > 0 && self.matches('{_DURATION}')",
    "write a duration in whole hours, minutes and seconds: 1h, 90s, 1h30m, or 0s for none",
)

MAX_REPLICAS: Final = 1000  # of a model on a class of accelerator

Duration: TypeAlias = Annotated[str, Field(max_length=20), DURATION_RULE]
TensorName: TypeAlias = Annotated[str, Field(min_length=1, max_length=TEXT_LENGTH)]


def between(what: str, least: str, most: str) -> ValidationRule:
    """Return the rule that bounds a `Duration`; it accepts what is not a duration, which has its own rule."""
    return ValidationRule(
        f"!self.matches('^[0-9hms]+$') || (duration(self) >= duration('{least}')"
        f" && duration(self) <= duration('{most}'))",
        f"write {what} between {least} and {most}",
    )


ShortDuration: TypeAlias = Annotated[
    str,
    Field(max_length=8),
    ValidationRule(
        "self.matches('^([0-9]{1,3}ms|[01]s)$')", "write a time from 0s to 1s, such as 5ms"
    ),
]

Percent: TypeAlias = Annotated[
    str,
    Field(max_length=10),
    ValidationRule(
        "self.matches('^(100([.]0+)?|[0-9]{1,2}([.][0-9]+)?)%$')",
        'write a share as a percentage between 0% and 100%, such as "2%" or "0.1%"',
    ),
]

Number: TypeAlias = Annotated[
    str,
    Field(max_length=32),
    ValidationRule(
        f"self.matches('{_NUMBER}')",
        'write a decimal number in quotes, such as "0.01", "1e-3" or "-2.5"',
    ),
]

Tolerance: TypeAlias = Annotated[
    str,
    Field(max_length=32),
    ValidationRule(
        f"self.matches('{_NUMBER}') && !self.startsWith('-')",
        'write a tolerance as a decimal number of at least 0 in quotes, such as "0.01" or "1e-3"',
    ),
]

Quantity: TypeAlias = Annotated[
    int | str,
    INT_OR_STRING,
    ValidationRule(
        "type(self) == int ? self >= 0 : isQuantity(self) && !self.startsWith('-')",
        "write a quantity as Kubernetes does: 2, 500m, 4Gi",
    ),
]

_EXACT: Final = Context(prec=400)  # digits; more than a field of Kubernetes has
_SUFFIXES: Final = {
    "": Decimal(1),
    **{letter: Decimal(1000) ** -(i + 1) for i, letter in enumerate("mun")},
    **{letter: Decimal(1000) ** (i + 1) for i, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (i + 1) for i, letter in enumerate("KMGTPE")},
}


def share(percent: str | None) -> float | None:
    """Return a percentage as a fraction of 1."""
    return None if percent is None else float(percent.removesuffix("%")) / 100


def exact_quantity(value: int | str) -> Decimal:
    """Return the value of a Kubernetes quantity (k8s.io/apimachinery, pkg/api/resource); ValueError if it is none."""
    match = re.fullmatch(r"([-+]?[0-9.]+)(?:([eE][-+]?[0-9]+)|([a-zA-Z]*))", str(value))
    try:
        if match and (match[3] or "") in _SUFFIXES:
            number = Decimal(match[1] + (match[2] or ""))
            return _EXACT.multiply(number, _SUFFIXES[match[3]]) if match[3] else number
    except ArithmeticError:  # not a number, or out of range
        pass
    raise ValueError(f"{value!r} is not a quantity")


def quantity(value: int | str) -> int:
    """Return a Kubernetes quantity as an integer, rounded up; ValueError if it is not one."""
    return math.ceil(exact_quantity(value))


Sha256: TypeAlias = Annotated[
    str,
    Field(max_length=80),
    ValidationRule(
        "self.matches('^[0-9a-f]{64}$')",
        "write the sha256 as 64 lowercase hexadecimal digits, as `sha256sum FILE` prints it",
    ),
]

_MOUNTED: Final = "".join(
    f" || self.startsWith('{scheme.prefix}')" for scheme in SCHEMES if scheme.is_mounted
)

Uri: TypeAlias = Annotated[
    str,
    Field(max_length=2048),
    ValidationRule(
        f"self.matches('^({'|'.join(scheme.name for scheme in SCHEMES)})://')",
        f"start with one of {', '.join(scheme.prefix for scheme in SCHEMES)}",
    ),
    ValidationRule(
        f"!self.matches('^[a-z0-9]+://'){_MOUNTED} || self.matches('^[a-z0-9]+://[^/]+/.+')",
        "write SCHEME://HOST-OR-BUCKET/PATH, down to the file or folder",
    ),
    *(ValidationRule(*rule) for scheme in reversed(SCHEMES) for rule in scheme.rules),
    ValidationRule(
        "!self.matches('^[a-z0-9]+://[^/]*@') || self.matches('^hf://[^/:]*@')",  # hf://REPO@REVISION
        "keep credentials out of the URI, which is not secret: put them into a Secret and name it in"
        " secretRef",
    ),
]

DnsLabel: TypeAlias = Annotated[
    str,
    Field(max_length=63),
    ValidationRule(
        "!format.dns1123Label().validate(self).hasValue()",
        "write at most 63 lowercase letters, digits and '-', beginning and ending with a letter or digit",
    ),
]

ObjectName: TypeAlias = Annotated[
    str,
    Field(max_length=253),
    ValidationRule(
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of a Kubernetes object: lowercase letters, digits, '-' and '.',"
        " beginning and ending with a letter or digit",
    ),
]

LabelValue: TypeAlias = Annotated[str, Field(max_length=63, description="Value of the label.")]
Labels: TypeAlias = Annotated[
    Mapping[str, LabelValue],
    Field(max_length=64),
    ValidationRule(
        "self.all(k, !format.qualifiedName().validate(k).hasValue())",
        "write label names as Kubernetes has them: app or example.com/team",
    ),
    ValidationRule(
        "self.all(k, !format.labelValue().validate(self[k]).hasValue())",
        "write label values of at most 63 letters, digits, '-', '_' and '.',"
        " beginning and ending with a letter or digit",
    ),
]

FreeForm: TypeAlias = Annotated[Mapping[str, object], FREE_FORM]


def duration(text: str) -> timedelta:
    """Return a `Duration` as a timedelta; ValueError if it does not match the grammar."""
    if not text or not re.fullmatch(_DURATION, text):
        raise ValueError(f"{text!r} is not a duration: {DURATION_RULE.message}")
    parts = re.findall("([0-9]+)([hms])", text)
    return timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in parts))


def long_duration(text: str) -> timedelta:
    """Return a duration that may begin with days, as in settings: 30d, 1d12h, or 0; ValueError if it is not one."""
    match = re.fullmatch("(?:([0-9]{1,4})d)?(.*)", text)
    days, rest = (match[1], match[2]) if match else (None, text)
    if days is None:
        return timedelta() if text == "0" else duration(text)
    return timedelta(days=int(days)) + (duration(rest) if rest else timedelta())


def short_duration(text: str) -> float:
    """Return a `ShortDuration` in seconds; ValueError if it does not match the grammar."""
    match = re.fullmatch("([0-9]{1,3})ms|([01])s", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time from 0s to 1s, such as 5ms")
    return int(match[1]) / 1000 if match[1] else float(match[2])


def whole_second(moment: datetime) -> datetime:
    """Return a time as in a status: in UTC, without fractions of a second."""
    return moment.astimezone(UTC).replace(microsecond=0)
