"""All steps, in the order in which they run: steps that harm the device are the last of their group."""

from hack.gpu_proof import cuda_costs, cuda_faults, cuda_group, incident, tensorrt_group
from hack.gpu_proof.steps import STEPS, Registered

_ORDER = (cuda_group, cuda_costs, incident, cuda_faults, tensorrt_group)


def order_steps() -> list[Registered]:
    """Return the steps by module; those of a module in the order of their definition."""
    places = {module.__name__: place for place, module in enumerate(_ORDER)}
    return sorted(STEPS.values(), key=lambda step: places[step.module])
