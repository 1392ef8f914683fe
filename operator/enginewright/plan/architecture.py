"""Which nodes can run an image, by the architecture that it reports."""

from enginewright.manifests.placement import ARCHITECTURE, architecture
from enginewright.plan.types import Facts


def image_architecture(facts: Facts, image: str) -> str:
    """Return the architecture label of nodes that can run the image; empty: not known, any node may."""
    processor = facts.images[image].processor
    if processor is None:
        return ""
    return architecture(processor.architecture, (each.label(ARCHITECTURE) for each in facts.nodes))
