"""A device of Dynamic Resource Allocation (DRA), with the names and structure of Kubernetes."""

from typing import Annotated

from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import ATOMIC
from enginewright.api.scalars import ObjectName


class CelSelector(ApiModel):
    """A condition for devices, in CEL."""

    expression: Annotated[str, Field(min_length=1, max_length=4096)]
    """What holds for the device, such as device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L4'."""


class DeviceSelector(ApiModel):
    """A condition for devices."""

    cel: CelSelector
    """The condition, in CEL."""


class DeviceRequest(ApiModel):
    """Which device a pod requests, as in a ResourceClaim of resource.k8s.io/v1."""

    device_class_name: ObjectName
    """DeviceClass of the device, such as gpu.nvidia.com or mig.nvidia.com of NVIDIA's DRA driver."""

    selectors: Annotated[tuple[DeviceSelector, ...], Field(max_length=8), ATOMIC] = ()
    """Conditions for the device, all of which must hold; empty: any device of the DeviceClass."""
