"""What a runtime image contains, as a Job that probes it reports, and which nodes can run it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Reason
from pydantic import ValidationError

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.manifests.job_limits import PROBE_SECONDS
from enginewright.manifests.placement import ARCHITECTURE, USUAL_ARCHITECTURE, architecture_label
from enginewright.manifests.probe_job import PROBE, probe_job_name
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView
from enginewright.plan.attempts import Work
from enginewright.plan.resolve.classes import select_nodes
from enginewright.plan.types import Facts, Obstacle


def not_probed(facts: Facts, image: str) -> Obstacle | None:
    """Return the obstacle that the contents of a runtime image are not known."""
    if failure := facts.image_failures.get(image):
        message = f"cannot probe the runtime image {image}: {failure}"
        return Obstacle(StatusReason.IMAGE_PROBE_FAILED, message)
    if image in facts.images:
        return None
    message = f"probing the runtime image {image} for its opsets and backends"
    return Obstacle(StatusReason.PROBING_IMAGE, message, stalled=False)


def architecture_of(image: ImageFacts, nodes: Iterable[NodeView]) -> str:
    """Return the architecture label of nodes that can run the image, or "" if any node may.

    Of several architectures always the same one, so that Jobs of equal models run alike. If no node has
    any of them, the image runs under emulation.
    """
    present = {node.label(ARCHITECTURE) for node in nodes}
    return next((item for item in _list_architectures(image) if item in present), "")


def engine_architecture(
    image: ImageFacts, nodes: Collection[NodeView], accelerator: AcceleratorClass
) -> str:
    """Return the same for the Job of an engine, which loads only on the architecture that built it.

    The class's, even where no node has it yet, if the image is built for several.
    """
    own = accelerator.spec.node_selector.get(ARCHITECTURE, USUAL_ARCHITECTURE)
    several = image.architectures if len(image.architectures) > 1 else ()
    return own if own in several else architecture_of(image, nodes)


def only_architectures(
    nodes: Collection[NodeView], images: Mapping[str, ImageFacts], snapshot: Snapshot
) -> dict[str, str]:
    """Return the architecture label of the pods' nodes for each class whose image is built for a single one.

    As far as it is known, and only where a node of the class has it: an image of several may not report them.
    """
    labels = {
        device_class.name: architecture_of(image, select_nodes(device_class.node_selector, nodes))
        for device_class in snapshot.classes
        if (image := images.get(device_class.image)) and len(image.architectures) <= 1
    }
    return {name: label for name, label in labels.items() if label}


def _list_architectures(image: ImageFacts) -> Iterator[str]:
    if image.architectures:
        yield from sorted(
            image.architectures,
            key=lambda architecture: (architecture != USUAL_ARCHITECTURE, architecture),
        )
    elif image.processor:
        yield architecture_label(image.processor.architecture)


def probing(image_hash: str, placement: str) -> Work[ImageFacts]:
    """Return the work of probing an image, which is always retried: no edit of a resource can fix it."""
    return Work(
        stages=(PROBE,),
        name=partial(probe_job_name, image_hash),
        result=_facts,
        placement=placement,
        overdue=(Reason.INTERNAL_ERROR, f"the probe timed out after {PROBE_SECONDS} s"),
        limit=None,
    )


def _facts(pod: PodView) -> ImageFacts | None:
    for container in pod.containers:
        if container.ended and container.ended.exit_code == 0:
            try:
                return ImageFacts.model_validate_json(container.ended.message)
            except ValidationError:
                continue
    return None
