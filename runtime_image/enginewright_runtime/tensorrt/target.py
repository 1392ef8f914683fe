"""The target of an engine, and the memory limit of its build."""

from enginewright_contract.engines import PROVIDERS, why_unusable
from enginewright_contract.images import UNUSABLE_REMEDY
from enginewright_contract.reasons import Reason
from enginewright_contract.task import EngineRecipe

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Limits
from enginewright_runtime.session import driver
from enginewright_runtime.session.loading import unusable_backends
from enginewright_runtime.tensorrt.flavor import Flavor, find


def target(flavor: Flavor, recipe: EngineRecipe) -> str | None:
    """Return the compute capability to build for, requested or the device's; raises StageFailure."""
    if recipe.ahead_of_time and flavor.targets:
        return recipe.compute_capability
    device = driver.ask(recipe.cuda_major)
    if device.driver.reason is not None:
        raise StageFailure(
            device.driver.reason, f"the engine needs a device to be built: {device.driver.message}"
        )
    requested, actual = recipe.compute_capability, device.compute_capability
    if requested is not None and actual is not None and requested != actual:
        raise StageFailure(
            Reason.ENGINE_INCOMPATIBLE,
            f"the engine is built for compute capability {requested}, but this device has {actual}",
        )
    return requested or actual


def refuse_unserved(recipe: EngineRecipe) -> None:
    """Refuse to build an engine that the provider would not load, before anything is fetched."""
    if mismatch := unusable_backends().get(recipe.backend):
        raise StageFailure(Reason.VERSION_MISMATCH, mismatch, remedy=UNUSABLE_REMEDY)
    capability = target(find(recipe.backend), recipe)
    if unusable := why_unusable(recipe.backend, capability):
        others = [name for name in PROVIDERS if why_unusable(name, capability) is None]
        raise StageFailure(
            Reason.ENGINE_INCOMPATIBLE,
            unusable,
            remedy=f"choose backend {' or '.join(others)} in spec.backends for accelerators of this class"
            if others
            else "choose another accelerator class: no backend serves such devices",
        )


def memory(recipe: EngineRecipe) -> Limits:
    """Return the limits of a process that builds."""
    return Limits.of_model(on_device=not recipe.ahead_of_time)
