"""What the runtime images of a cluster contain, as its operator has probed them and stored in a ConfigMap."""

from typing import Final

from enginewright.controller.images import CONFIG_MAP, read_entry
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import Forbidden, NotFound
from enginewright.kube.resources import CONFIG_MAPS
from enginewright.manifests.labels import MANAGED_BY, OPERATOR
from enginewright_contract.images import ImageFacts

from enginewright_cli.reporting import CommandError

# Where the documentation installs the chart: for users who may not list all namespaces.
CHART_NAMESPACE: Final = "enginewright-system"


async def list_images(api: KubeApi) -> dict[str, ImageFacts]:
    """Return the images' facts by reference, from every operator's ConfigMap that can be read. Raises KubeError."""
    images: dict[str, ImageFacts] = {}
    for config_mapping in await _config_maps(api):
        for text in (config_mapping.get("data") or {}).values():
            images |= read_entry(text)
    return images


async def _config_maps(api: KubeApi) -> tuple[JsonObject, ...]:
    try:
        listing = await api.list(
            CONFIG_MAPS, labels=f"{MANAGED_BY}={OPERATOR}", fields=f"metadata.name={CONFIG_MAP}"
        )
    except Forbidden as everywhere:
        try:
            return (await api.get(CONFIG_MAPS, CHART_NAMESPACE, CONFIG_MAP),)
        except (Forbidden, NotFound):
            raise everywhere from None
    return listing.items


def choose_image(text: str, images: dict[str, ImageFacts]) -> tuple[str, ImageFacts]:
    """Return the image with this reference, this digest or this prefix of a digest. Raises CommandError."""
    digest = text.removeprefix("sha256:")
    matches = [
        image
        for image in images
        if image == text or (digest and image.partition("@sha256:")[2].startswith(digest))
    ]
    if len(matches) == 1:
        return matches[0], images[matches[0]]
    existing = ", ".join(sorted(images)) or "none"
    if not images:
        raise CommandError(
            f"--image {text}: the cluster's operator has not probed any image yet (no ConfigMap"
            f" {CONFIG_MAP}); install the chart and wait until the operator is ready"
        )
    raise CommandError(
        f"--image {text}: {len(matches) or 'no'} images of the cluster match this reference or digest;"
        f" known images: {existing}"
    )
