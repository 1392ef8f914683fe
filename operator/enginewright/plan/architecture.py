"""Which nodes can run an image, by the architecture that it reports."""

from collections.abc import Iterable

from enginewright.contract.images import ImageFacts
from enginewright.manifests.placement import ARCHITECTURE, architecture
from enginewright.observed.nodes import NodeView
from enginewright.plan.types import Facts


def image_architecture(facts: Facts, image: str) -> str:
    """Return the architecture label of nodes that can run the image; empty: not known, any node may."""
    return architecture_of(facts.images[image], facts.nodes)


def architecture_of(image: ImageFacts, nodes: Iterable[NodeView]) -> str:
    """Return the same for an image whose contents are known."""
    if image.processor is None:
        return ""
    return architecture(image.processor.architecture, (each.label(ARCHITECTURE) for each in nodes))
