"""Results of child processes that call NVIDIA's library, with its raw messages, for `diagnosis`."""

from dataclasses import dataclass
from typing import Final

_UNSUPPORTED: Final = ("UNSUPPORTED_NODE", "UNSUPPORTED_GRAPH")
NO_PLUGIN: Final = "Plugin not found"


@dataclass(frozen=True)
class ParserError:
    """One node that the parser refuses."""

    code: str
    node: int | None  # index in the main graph, as far as it is known
    name: str
    operator: str
    message: str

    @property
    def is_named(self) -> bool:
        """Whether the parser says which node it is."""
        return bool(self.name or self.operator)

    @property
    def unsupported(self) -> bool:
        """Whether the node has no implementation, rather than being invalid."""
        return self.code.startswith(_UNSUPPORTED) or NO_PLUGIN in self.message


@dataclass(frozen=True)
class BuildResult:
    """The result of one build."""

    built: bool  # whether the engine was written
    parsed: bool
    errors: tuple[str, ...] = ()  # the library's
    parser: tuple[ParserError, ...] = ()
    unprofiled: tuple[str, ...] = ()  # inputs that need sizes or values and have none
    # compute capabilities that the library builds for, if the requested one is not among them
    supported: tuple[str, ...] | None = None
    shape_inputs: tuple[str, ...] = ()  # those whose values are sizes
    workspace_bytes: int | None = None  # in effect
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class SupportedParts:
    """The parts of a model that the parser supports."""

    parts: tuple[tuple[int, ...], ...]  # indices of nodes, without constants
    errors: tuple[ParserError, ...]  # of the complete model
    # nodes that it supports, and that need a tensor from outside whose sizes depend on values
    left_out: tuple[int, ...] = ()
