"""On which nodes an image runs, by what the image itself reports."""

from enginewright.manifests.placement import ARCHITECTURE, architecture
from enginewright.plan.types import Facts


def image_architecture(facts: Facts, image: str) -> str:
    """Return the label of nodes that run the image; empty: not known, so that any may be tried."""
    processor = facts.images[image].processor
    if processor is None:
        return ""
    return architecture(processor.architecture, (each.label(ARCHITECTURE) for each in facts.nodes))
