"""What the sidecars of both revisions have measured, through the API server."""

import asyncio
from collections.abc import Iterable
from typing import Final

from enginewright.controller.measured import PATH
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress, PodHttp
from enginewright.observed.pods import PodView
from enginewright_contract.measurements import Measurements
from enginewright_contract.task import SIDECAR_PORT
from pydantic import ValidationError

_AT_ONCE: Final = 8  # requests
_NOT_FOUND: Final = 404
_DENIED: Final = (401, 403)


async def measure(http: PodHttp, pods: Iterable[PodView]) -> dict[str, Measurements | str]:
    """Return the measurements of each pod by its name, or why they are not known."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: PodView) -> tuple[str, Measurements | str]:
        async with limit:
            return pod.name, await _measured(http, pod)

    return dict(await asyncio.gather(*map(one, pods)))


async def _measured(http: PodHttp, pod: PodView) -> Measurements | str:
    address = PodAddress(pod.namespace, pod.name, pod.ip, SIDECAR_PORT)
    try:
        return Measurements.model_validate_json(await http.get(address, PATH))
    except NoAnswer as error:
        return f"pod {pod.name} does not report measurements: {error}"
    except BadAnswer as error:
        if error.status == _NOT_FOUND:
            return "measurements are not reported by this version of the runtime image"
        if error.status in _DENIED:
            return "you may not read measurements: they need the verb get on pods/proxy"
        return f"pod {pod.name} does not report measurements: {error}"
    except ValidationError:
        return "measurements are reported in the format of another version"
