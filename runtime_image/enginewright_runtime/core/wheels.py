"""Which installed distributions own a top-level module.

`importlib.metadata.packages_distributions` answers it for all modules at once, by parsing every list of
installed files: half a second on a slow processor, in every process that asks.
"""

from functools import cache
from importlib.metadata import Distribution, distributions


@cache
def owners(module: str) -> tuple[Distribution, ...]:
    """Return the distributions that own a top-level module or package, by name; () where none does.

    Of two installations of one distribution the first on the path counts, as for Python.
    """
    found: dict[str, Distribution] = {}
    for each in distributions():
        # without METADATA, as an interrupted installation leaves it, there is no name
        if each.name and _owns(each, module):
            found.setdefault(each.name, each)
    return tuple(found[name] for name in sorted(found))


def _owns(distribution: Distribution, module: str) -> bool:
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return module in declared
    record = f"\n{distribution.read_text('RECORD') or ''}"
    return f"\n{module}/" in record or f"\n{module}." in record
