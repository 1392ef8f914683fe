"""All steps, in the order in which they run."""

from gpu_proof import cuda_group, incident, tensorrt_group
from gpu_proof.steps import STEPS

__all__ = ["STEPS", "cuda_group", "incident", "tensorrt_group"]
