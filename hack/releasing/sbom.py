"""CycloneDX SBOMs, made and checked against the specification's schema by the project's own library."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import Final

# of the environment .venv-release alone
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from hack.releasing.contents import Package

_LIBRARY: Final = "cyclonedx-python-lib"


def describe_packages(name: str, version: str, packages: Iterable[Package], time: int) -> str:
    """Return the SBOM of an image, or of an environment, as JSON.

    Raises:
        ValueError: The schema refuses it.
    """
    subject = Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref="subject")
    return _write(subject, map(_describe_package, packages), time)


def describe_chart(
    name: str, version: str, images: Iterable[tuple[str, str, str]], time: int
) -> str:
    """Return the SBOM of the chart's release as JSON: the images that it is released with, and their digests.

    Args:
        name: Of the chart.
        version: Of chart and images.
        images: Name, tag and digest of each manifest.
        time: Seconds since the epoch.

    Raises:
        ValueError: The schema refuses it.
    """
    subject = Component(
        type=ComponentType.APPLICATION, name=name, version=version, bom_ref="subject"
    )
    return _write(subject, (_describe_image(*image) for image in images), time)


def _describe_package(package: Package) -> Component:
    qualifiers = {"arch": package.architecture, "distro": package.system}
    url = PackageURL(
        package.kind,
        package.system.partition("-")[0] or None,
        package.name,
        package.version,
        {key: value for key, value in qualifiers.items() if value},
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=str(url),
        licenses=[LicenseFactory().make_from_string(package.licence)] if package.licence else [],
    )


def _describe_image(name: str, tag: str, digest: str) -> Component:
    url = PackageURL("oci", None, name.rpartition("/")[2], digest, {"tag": tag})
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        purl=url,
        bom_ref=str(url),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.partition(":")[2])],
    )


def _write(subject: Component, components: Iterable[Component], time: int) -> str:
    by_url = {str(component.bom_ref): component for component in components}
    bom = Bom(components=by_url.values())
    bom.metadata.component = subject
    bom.metadata.timestamp = datetime.fromtimestamp(time, UTC)
    bom.metadata.tools.components.add(
        Component(type=ComponentType.LIBRARY, name=_LIBRARY, version=version_of(_LIBRARY))
    )
    bom.register_dependency(subject, by_url.values())
    content = "\n".join((str(subject.name), str(subject.version), str(time), *sorted(by_url)))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, content)  # the library's is random
    text = str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the SBOM of {subject.name} is against CycloneDX's schema: {wrong}")
    return text
