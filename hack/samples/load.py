"""Clients of models' Services, in a pod of the cluster, that count every failure.

Some keep their connections, others open one for each request. None retries: a connection that the server closes
during a request is a failure, one that it announces to close is not.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

PORT: Final = 8080
WIDTH: Final = 16  # of the input of the revisions
PROGRAM: Final = """\
import asyncio, json, sys, time

services, body, keeping, opening, pause = json.loads(sys.argv[1])
stats = {"sent": 0, "failed": 0, "failures": {}, "slowest": 0.0}

async def exchange(host, path, connection, keep):
    reader, writer = connection or await asyncio.open_connection(host, 80)
    request = (f"POST {path} HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Type: application/json\\r\\n"
               f"Content-Length: {len(body)}\\r\\n").encode()
    writer.write(request + (b"" if keep else b"Connection: close\\r\\n") + b"\\r\\n" + body.encode())
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\\r\\n")[1:] if b": " in line)
    content = await reader.readexactly(int(fields[b"content-length"]))
    status = int(head.split(b" ", 2)[1])
    if status != 200:
        raise ValueError(f"{status}: {content[:200].decode(errors='replace')}")
    if not json.loads(content)["outputs"][0]["data"]:
        raise ValueError("no data")
    if keep and fields.get(b"connection") != b"close":
        return reader, writer
    writer.close()
    return None

async def client(host, path, number, keep):
    connection = None
    await asyncio.sleep(pause * number / (keeping + opening))
    while True:
        began = time.monotonic()
        stats["sent"] += 1
        try:
            connection = await asyncio.wait_for(exchange(host, path, connection, keep), 10)
        except Exception as error:
            if connection:
                connection[1].close()
            connection = None
            stats["failed"] += 1
            text = f"{host.split('.')[0]}, {'kept' if keep else 'fresh'}: {type(error).__name__}: {error}"[:300]
            stats["failures"][text] = stats["failures"].get(text, 0) + 1
        took = time.monotonic() - began
        stats["slowest"] = max(stats["slowest"], took)
        await asyncio.sleep(max(0.0, pause - took))

async def report(reader, writer):
    try:
        await reader.readuntil(b"\\r\\n\\r\\n")
        text = json.dumps(stats).encode()
        writer.write(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(text) + text)
        await writer.drain()
    finally:
        writer.close()

async def main():
    await asyncio.start_server(report, "0.0.0.0", 8080)
    clients = [
        client(host, path, each, each < keeping)
        for host, path in services
        for each in range(keeping + opening)
    ]
    await asyncio.wait_for(asyncio.gather(*clients), 3000)  # ends by itself

asyncio.run(main())
"""


def pod(
    name: str,
    namespace: str,
    models: Sequence[str],
    body: dict[str, Any],
    image: str,
    *,
    keeping: int = 6,
    opening: int = 4,
    pause: float = 0.08,
) -> dict[str, Any]:
    """Return a pod whose clients send up to `1 / pause` requests a second each; it reports on `PORT`.

    Of each model's clients, `keeping` keep their connections, and `opening` open one for each request.
    """
    arguments = [
        [
            [f"{model}.{namespace}.svc.cluster.local", f"/v2/models/{model}/infer"]
            for model in models
        ],
        json.dumps(body),
        keeping,
        opening,
        pause,
    ]
    container = {
        "name": "load",
        "image": image,
        "command": ["python3", "-c", PROGRAM, json.dumps(arguments)],
        "resources": {"requests": {"cpu": "50m"}},
    }
    ends = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    spec = {**pod_spec(container), **ends}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def pod_spec(container: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with one container that a restricted namespace admits."""
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**container, "securityContext": allowed}],
    }
