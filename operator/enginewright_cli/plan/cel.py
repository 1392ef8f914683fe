"""As much of CEL as the rules of our own definitions use, so that they hold without a cluster too.

The language: cel-spec, doc/langdef.md; the libraries that Kubernetes adds: k8s.io/apiserver,
pkg/cel/library. A rule that uses more is refused when it is compiled, which a test sees.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from enginewright.api.scalars import duration

Value: TypeAlias = Any  # what JSON holds, and what the functions below make of it
Scope: TypeAlias = Mapping[str, Value]
Program: TypeAlias = Callable[[Scope], Value]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<string>'(?:[^'\\]|\\.)*')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\|\||&&|[=!<>]=|[-+?:.,()\[\]<>!]))"
)
_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** (i + 1) for i, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (i + 1) for i, letter in enumerate("KMGTPE")},
}
_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_FORMATS: Final = {  # k8s.io/apimachinery, pkg/util/validation; and the most characters
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "labelValue": (f"({_NAME})?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_NAME}", 317),
}


class CelError(Exception):
    """A rule that cannot be compiled, or that comes to nothing with this value."""


def compiled(text: str) -> Program:
    """Return a function from the names in scope, `self` among them, to the rule's value.

    It raises CelError where the rule asks for what is not there.

    Raises:
        CelError: the rule uses what is not known here.
    """
    parser = _Parser(text)
    program = parser.expression()
    parser.end()
    return program


class _Parser:
    """Recursive descent, one method a level of precedence."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    def expression(self) -> Program:
        condition = self._either()
        if not self._take("?"):
            return condition
        yes = self._either()
        self._expect(":")
        no = self.expression()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise CelError(f"{self._text}: {self._tokens[self._at][1]!r} is not known here")

    def _either(self) -> Program:
        found = self._both()
        while self._take("||"):
            found = _or(found, self._both())
        return found

    def _both(self) -> Program:
        found = self._relation()
        while self._take("&&"):
            found = _and(found, self._relation())
        return found

    def _relation(self) -> Program:
        left = self._sum()
        for sign, compare in _COMPARE.items():
            if self._take(sign):
                return _binary(compare, left, self._sum())
        return left

    def _sum(self) -> Program:
        left = self._unary()
        while self._take("+"):
            left = _binary(lambda a, b: a + b, left, self._unary())
        return left

    def _unary(self) -> Program:
        if self._take("!"):
            inner = self._unary()
            return lambda scope: not inner(scope)
        if self._take("-"):
            inner = self._unary()
            return lambda scope: -inner(scope)
        return self._postfix()

    def _postfix(self) -> Program:
        found = self._primary()
        while True:
            if self._take("."):
                found = self._member(found)
            elif self._take("["):
                found = _binary(_item, found, self.expression())
                self._expect("]")
            else:
                return found

    def _member(self, of: Program) -> Program:
        name = self._name()
        if not self._take("("):
            return lambda scope: _field(of(scope), name)
        if name in _MACROS:
            return self._macro(name, of)
        arguments = self._arguments()
        if name not in _METHODS:
            raise CelError(f"{self._text}: {name}() is not known here")
        method = _METHODS[name]
        return lambda scope: method(of(scope), *(each(scope) for each in arguments))

    def _macro(self, name: str, of: Program) -> Program:
        """Read `x, condition`, or `i, x, condition`, where the index comes first."""
        names = [self._name()]
        self._expect(",")
        if self._ahead(1) == ",":
            names.append(self._name())
            self._expect(",")
        condition = self.expression()
        self._expect(")")
        judge = _MACROS[name]

        def run(scope: Scope) -> Value:
            items = enumerate(of(scope))
            held = (
                condition({**scope, **dict(zip(reversed(names), (item, index), strict=False))})
                for index, item in items
            )
            return judge(held)

        return run

    def _primary(self) -> Program:
        if self._take("("):
            inner = self.expression()
            self._expect(")")
            return inner
        if self._take("["):
            items = self._arguments("]")
            return lambda scope: [each(scope) for each in items]
        kind, text = self._next()
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda _: number
        if kind == "string":
            return lambda _: re.sub(r"\\(.)", r"\1", text[1:-1])
        if kind == "name":
            return self._named(text)
        raise CelError(f"{self._text}: {text!r} is not known here")

    def _named(self, name: str) -> Program:
        if not self._take("("):
            if name in _CONSTANTS:
                value = _CONSTANTS[name]
                return lambda _: value
            return lambda scope: _variable(scope, name)
        if name == "has":
            return self._has()
        arguments = self._arguments()
        if name not in _FUNCTIONS:
            raise CelError(f"{self._text}: {name}() is not known here")
        function = _FUNCTIONS[name]
        return lambda scope: function(*(each(scope) for each in arguments))

    def _has(self) -> Program:
        inner = self._postfix()
        self._expect(")")

        def present(scope: Scope) -> bool:
            try:
                inner(scope)
            except CelError:
                return False
            return True

        return present

    def _arguments(self, close: str = ")") -> list[Program]:
        found: list[Program] = []
        while not self._take(close):
            if found:
                self._expect(",")
            found.append(self.expression())
        return found

    def _ahead(self, count: int) -> str:
        place = self._at + count
        return self._tokens[place][1] if place < len(self._tokens) else ""

    def _take(self, sign: str) -> bool:
        if self._ahead(0) != sign:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"{self._text}: {sign!r} is missing before {self._ahead(0)!r}")

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise CelError(f"{self._text}: {text!r} is no name")
        return text

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise CelError(f"{self._text}: it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]


def _tokens(text: str) -> list[tuple[str, str]]:
    found = []
    at = 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise CelError(f"{text}: {text[at:].strip()[:1]!r} is not known here")
        kind = str(token.lastgroup)
        found.append((kind, token[kind]))
        at = token.end()
    return found


def _or(left: Program, right: Program) -> Program:
    """Return a disjunction in which what is true hides what comes to nothing, on either side."""

    def run(scope: Scope) -> bool:
        try:
            if left(scope):
                return True
        except CelError:
            if right(scope):
                return True
            raise
        return bool(right(scope))

    return run


def _and(left: Program, right: Program) -> Program:
    def run(scope: Scope) -> bool:
        try:
            if not left(scope):
                return False
        except CelError:
            if not right(scope):
                return False
            raise
        return bool(right(scope))

    return run


def _binary(act: Callable[[Value, Value], Value], left: Program, right: Program) -> Program:
    def run(scope: Scope) -> Value:
        try:
            return act(left(scope), right(scope))
        except TypeError as error:
            raise CelError(str(error)) from None

    return run


def _field(value: Value, name: str) -> Value:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, _Format) and name in _FORMATS:
        return value
    raise CelError(f"no such key: {name}")


def _item(value: Value, key: Value) -> Value:
    try:
        return value[key]
    except (LookupError, TypeError):
        raise CelError(f"no such item: {key}") from None


def _variable(scope: Scope, name: str) -> Value:
    if name not in scope:
        raise CelError(f"undeclared: {name}")
    return scope[name]


class _Format:
    """One of Kubernetes' formats: `validate` gives the words that are wrong, or nothing."""

    def __init__(self, name: str) -> None:
        self._pattern, self._most = _FORMATS[name]

    def validate(self, text: str) -> list[str]:
        fits = len(text) <= self._most and re.fullmatch(self._pattern, text)
        return [] if fits else ["it is not of this form"]


def _format(name: str) -> Callable[[Value], _Format]:
    return lambda _: _Format(name)


def _quantity(text: str) -> Decimal:
    found = re.fullmatch(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)([a-zA-Z]*)", text)
    try:
        if found and found[2] in _SUFFIXES:
            return Decimal(found[1]) * _SUFFIXES[found[2]]
    except InvalidOperation:
        pass
    raise CelError(f"{text!r} is no quantity")


def _is_quantity(text: str) -> bool:
    try:
        _quantity(text)
    except CelError:
        return False
    return True


def _double(value: Value) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise CelError(f"{value!r} is no number") from None


def _seconds(text: str) -> float:
    try:
        return duration(text).total_seconds()
    except ValueError:
        raise CelError(f"{text!r} is no duration") from None


_CONSTANTS: Final[dict[str, Value]] = {
    "true": True,
    "false": False,
    "null": None,
    "int": int,
    "string": str,
    "format": None,  # all that hangs on it are functions
}
_COMPARE: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "in": lambda a, b: a in b,
}
_FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "size": len,
    "string": str,
    "type": type,
    "double": _double,
    "duration": _seconds,
    "isQuantity": _is_quantity,
    "quantity": _quantity,
}
_METHODS: Final[dict[str, Callable[..., Value]]] = {
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "size": len,
    "compareTo": lambda a, b: (a > b) - (a < b),
    "validate": _Format.validate,
    "hasValue": bool,
    **{name: _format(name) for name in _FORMATS},
}
_MACROS: Final[dict[str, Callable[..., bool]]] = {
    "all": all,
    "exists": any,
    "exists_one": lambda held: sum(map(bool, held)) == 1,
}
