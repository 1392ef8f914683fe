"""What Triton's and KServe's clients see of a server with TLS and tokens: prints JSON. It runs in .venv-clients.

Its argument is JSON: whose client, the server's addresses (http, grpc), a token, and the file of the authority.
"""

import asyncio
import json
import logging
import ssl
import sys
from typing import Any

import numpy as np

GIVEN: dict[str, str] = json.loads(sys.argv[1])
if GIVEN["client"] == "triton":  # both register the same message names
    import tritonclient.grpc
    import tritonclient.http
    from tritonclient.utils import InferenceServerException
else:
    import httpx
    import kserve
X = np.ones((2, 8), np.float32)


def clients() -> dict[str, tuple[Any, Any]]:
    return {
        "http": (
            tritonclient.http.InferenceServerClient(
                GIVEN["http"],
                ssl=True,
                ssl_options={"ca_certs": GIVEN["authority"]},
            ),
            tritonclient.http,
        ),
        "grpc": (
            tritonclient.grpc.InferenceServerClient(
                GIVEN["grpc"], ssl=True, root_certificates=GIVEN["authority"]
            ),
            tritonclient.grpc,
        ),
    }


def triton(client: Any, module: Any, token: str) -> Any:
    x = module.InferInput("x", list(X.shape), "FP32")
    x.set_data_from_numpy(X)
    try:
        answer = client.infer("m", [x], headers={"authorization": f"Bearer {token}"})
    except InferenceServerException as error:
        return str(error)
    return answer.as_numpy("y").tolist()


async def of_kserve(token: str) -> Any:
    context = ssl.create_default_context(cafile=GIVEN["authority"])
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", verify=context))
    x = kserve.InferInput("x", list(X.shape), "FP32")
    x.set_data_from_numpy(X, binary_data=True)
    request = kserve.InferRequest("m", [x], parameters={"binary_data_output": True})
    url = f"https://{GIVEN['http']}"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        answer = await client.infer(url, request, headers=headers, model_name="m")
    except httpx.HTTPStatusError as error:
        return str(error)
    finally:
        await client.close()
    return {output.name: output.as_numpy() for output in answer.outputs}["y"].tolist()


def main() -> None:
    logging.disable()
    results: dict[str, Any] = {}
    if GIVEN["client"] == "kserve":
        results["kserve"] = [asyncio.run(of_kserve(item)) for item in (GIVEN["token"], "wrong")]
        print(json.dumps(results))
        return
    for name, (client, module) in clients().items():
        results[name] = [triton(client, module, item) for item in (GIVEN["token"], "wrong")]
        results[f"{name} ready"] = client.is_server_ready()
    print(json.dumps(results))


main()
