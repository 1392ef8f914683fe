"""Answers for the sidecars of all pods: that what they serve keeps its promises, as `GET /verdict`.

It runs in the cluster's network namespace, in which all of kwok's addresses are its own: the address that was
asked says which pod is meant.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from aiohttp import web
from enginewright_contract.task import SIDECAR_PORT
from enginewright_contract.verdict import Check, CheckVerdict, FallbackVerdict, Verdict

from bench.scale.api import PODS, Api

BACKEND: Final = "tensorrt-rtx"
_MODEL: Final = "enginewright.dev/model"
_REVISION: Final = "enginewright.dev/revision"


def _verdict(model: str, revision: str) -> str:
    return Verdict(
        model=model,
        revision=revision,
        backend=BACKEND,
        provider="NvTensorRTRTXExecutionProvider",
        ready=True,
        admitted=True,
        checks=tuple(CheckVerdict(check=check, state="ok") for check in Check),
        fallback=FallbackVerdict(active=False, nodes_total=415),
    ).model_dump_json()


async def _serve(kubeconfig: Path) -> None:
    served: dict[str, tuple[str, str]] = {}  # model and revision by address

    async def answer(request: web.Request) -> web.Response:
        address = request.get_extra_info("sockname")[0]
        if address not in served:
            return web.Response(status=503)
        return web.Response(text=_verdict(*served[address]), content_type="application/json")

    application = web.Application()
    application.router.add_get("/verdict", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", SIDECAR_PORT, backlog=4096).start()  # noqa: S104 - see above
    async with Api(kubeconfig) as api:
        async for kind, pod in api.watch(PODS, {"labelSelector": _REVISION}):
            address = pod.get("status", {}).get("podIP")
            labels = pod["metadata"]["labels"]
            if kind == "DELETED":
                served.pop(address, None)
            elif address:
                served[address] = labels[_MODEL], labels[_REVISION]


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
