"""The shape profiles that a request has to fit: what was declared, or what the engine was built with."""

from enginewright.contract.manifest import Manifest
from enginewright.contract.task import ShapeProfile


def served_profiles(manifest: Manifest) -> tuple[tuple[ShapeProfile, ...], ...]:
    """Return the profiles, of which a request has to fit any one; a profile may leave inputs open.

    An engine takes no more than its own, declared or not. Elsewhere only what was declared limits,
    and the range of an input's values was declared for golden inputs, not for requests.
    """
    engine = manifest.engine
    if engine is not None and engine.profiles:
        return tuple(profile.inputs for profile in engine.profiles)
    anything = {"low": None, "high": None}
    return (tuple(each.model_copy(update=anything) for each in manifest.recipe.shapes),)
