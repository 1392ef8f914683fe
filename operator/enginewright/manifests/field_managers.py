"""Field managers of the operator's server-side apply: each owns the fields that it applies."""

from typing import Final

FIELD_MANAGER: Final = "enginewright"  # of all objects
# of labels and annotations that are set beside those of an object's own intent
METADATA_MANAGER: Final = "enginewright-metadata"
# of a Deployment's spec.replicas, from when the operator stops applying it until an autoscaler scales
HANDOVER_MANAGER: Final = "enginewright-handover-to-hpa"
