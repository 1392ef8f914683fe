"""HTML by construction: whatever is not markup already is text, and is escaped.

So there is no place where a model's name could be forgotten.
"""

from html import escape
from typing import TYPE_CHECKING, Final, TypeAlias

from enginewright_cli.preflight.words import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID: Final = frozenset({"link", "meta"})


class Markup(str):
    """HTML that was made here."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element; `class_` stands for class, and `aria_label` for aria-label.

    Attributes that are None or False are left out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{text(children)}</{name}>")


def text(child: Child) -> Markup:
    """Return what stands between two tags."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(escape(visible(child)))
    return Markup("".join(map(text, child)))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(visible(str(value)))}"'
