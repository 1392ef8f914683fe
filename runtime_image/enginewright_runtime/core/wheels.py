"""Which installed distributions own a top-level module.

`importlib.metadata.packages_distributions` answers it for all modules at once, by parsing every list of
installed files: half a second on a slow processor, in every process that asks.
"""

from functools import cache
from importlib.metadata import Distribution, distributions


@cache
def owners(module: str) -> tuple[Distribution, ...]:
    """Return the distributions that own a top-level module or package, by name; () where none does."""
    found = {each.name: each for each in distributions() if _owns(each, module)}
    return tuple(found[name] for name in sorted(found))


def _owns(distribution: Distribution, module: str) -> bool:
    if declared := distribution.read_text("top_level.txt"):
        return module in declared.split()
    record = f"\n{distribution.read_text('RECORD') or ''}"
    return f"\n{module}/" in record or f"\n{module}." in record
