"""Kubernetes' dialect of CEL, to evaluate the rules of our CRDs without a cluster.

CEL itself is evaluated by its authors' library. This module adds those functions of the API server
that our rules use (k8s.io/apiserver, pkg/cel/library). A rule that uses any other function fails to
compile, which a test detects.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeAlias

from cel_expr_python import cel
from enginewright.api.scalars import exact_quantity

Value: TypeAlias = Any  # what JSON holds
Program: TypeAlias = Callable[[Value], Value]

_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_FORMATS: Final = {  # k8s.io/apimachinery, pkg/util/validation; with the maximum length
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "labelValue": (f"({_NAME})?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_NAME}", 317),
}
_CONFIGURATION: Final = "extensions: [{name: two-var-comprehensions}]"


class CelError(Exception):
    """A rule that cannot be compiled, or that cannot be evaluated for a value."""


def compile_rule(text: str) -> Program:
    """Return a function from the value of `self` to the rule's value; both raise CelError."""
    try:
        expression = _environment().compile(text)
    except RuntimeError as error:
        raise CelError(f"{text}: {error}") from None

    def evaluate(value: Value) -> Value:
        try:
            result = expression.eval(data={"self": value})
        except RuntimeError as error:  # such as a string that is not valid Unicode
            raise CelError(f"{text}: {error}") from None
        if result.type() == cel.Type.ERROR:
            raise CelError(result.value())
        return result.plain_value()

    return evaluate


@cache
def _environment() -> cel.Env:
    """Return the environment; quantities and formats, whose types are opaque, are strings here."""
    text, flag = cel.Type.STRING, cel.Type.BOOL
    functions = [
        _function("isQuantity", [text], flag, _is_quantity),
        _function("quantity", [text], text, _check_quantity),
        _function("compareTo", [text, text], cel.Type.INT, _compare_quantities, method=True),
        _function("validate", [text, text], cel.Type.LIST, _violations, method=True),
        _function("hasValue", [cel.Type.LIST], flag, bool, method=True),
        *(_function(f"format.{name}", [], text, partial(str, name)) for name in _FORMATS),
    ]
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_CONFIGURATION),
        variables={"self": cel.Type.DYN},
        functions=functions,
    )


def _function(
    name: str,
    parameters: list[cel.Type],
    returned: cel.Type,
    implementation: Callable[..., Value],
    *,
    method: bool = False,
) -> cel.FunctionDecl:
    return cel.FunctionDecl(
        name, [cel.Overload(name, returned, parameters, method, implementation)]
    )


def _violations(name: str, text: str) -> list[str]:
    """Return why a text does not match a format; []: it does."""
    pattern, longest = _FORMATS[name]
    fits = len(text) <= longest and re.fullmatch(pattern, text)
    return [] if fits else [f"not a {name}"]


def _is_quantity(text: str) -> bool:
    try:
        exact_quantity(text)
    except ValueError:
        return False
    return True


def _check_quantity(text: str) -> str:
    exact_quantity(text)
    return text


def _compare_quantities(left: str, right: str) -> int:
    a, b = exact_quantity(left), exact_quantity(right)
    return (a > b) - (a < b)
