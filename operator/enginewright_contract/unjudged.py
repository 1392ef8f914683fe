"""Parts of outputs that the golden samples do not judge, in the words of stages, pods, conditions and commands."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from enginewright_contract.manifest import Manifest, OutputParity
from enginewright_contract.task import Recipe

_NAMED: Final = 3  # outputs; the rest is a count


def list_accepted(recipe: Recipe) -> frozenset[str]:
    """Return the outputs of which the spec accepts that nothing judges them, or parts of them."""
    return frozenset(output.name for output in recipe.outputs if output.accept_unjudged)


@dataclass(frozen=True)
class Unjudged:
    """The outputs of an artefact with such parts, each once."""

    precision: str | None  # of the artefact, unless it is the source's own
    unaccepted: tuple[OutputParity, ...] = ()  # which the recipe does not accept
    accepted: tuple[OutputParity, ...] = ()  # by `spec.parity.outputs`

    @classmethod
    def find(
        cls, parity: Iterable[OutputParity], recipe: Recipe, precision: str | None = None
    ) -> Self:
        """Return those among compared outputs; of an output that was compared several times, the first ones."""
        by_name: dict[str, OutputParity] = {}
        for output in parity:
            if output.unjudged:
                by_name.setdefault(output.name, output)
        names = list_accepted(recipe)
        return cls(
            precision,
            tuple(output for name, output in by_name.items() if name not in names),
            tuple(output for name, output in by_name.items() if name in names),
        )

    @classmethod
    def of_artefact(cls, manifest: Manifest) -> Self:
        """Return those of a prepared model or an engine, as recorded when it was made."""
        engine = manifest.engine.parity if manifest.engine else ()
        return cls.find((*engine, *manifest.parity), manifest.recipe, manifest.precision)

    @property
    def cause(self) -> str:
        """Return which parts are not accepted, in one sentence; "" if there are none."""
        return self._describe(self.unaccepted)

    @property
    def note(self) -> str:
        """Return which parts are accepted; "" if none are."""
        said = self._describe(self.accepted)
        return f"spec.parity.outputs accepts that {said}" if said else ""

    def _describe(self, outputs: tuple[OutputParity, ...]) -> str:
        if not outputs:
            return ""
        named = [
            part.describe(output.name) for output in outputs[:_NAMED] for part in output.unjudged
        ]
        if (more := len(outputs) - _NAMED) > 0:
            named.append(f"parts of {more} more output{'' if more == 1 else 's'}")
        precision = f" in {self.precision}" if self.precision else ""
        return f"{' and '.join(named)} do not vary enough on the golden samples to be judged{precision}"
