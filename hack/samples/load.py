"""Clients of a Service, in a pod of the cluster, that count every failure.

Some keep their connections, others open one for each request. None retries: a connection that the server closes
under a request is a failure, one that it announces to close is not.
"""

import json
from typing import Any, Final

PORT: Final = 8080
PROGRAM: Final = """\
import asyncio, json, sys, time

host, path, body, keeping, opening, pause = json.loads(sys.argv[1])
request = (f"POST {path} HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Type: application/json\\r\\n"
           f"Content-Length: {len(body)}\\r\\n").encode()
stats = {"sent": 0, "failed": 0, "failures": {}, "slowest": 0.0}

async def exchange(connection, keep):
    reader, writer = connection or await asyncio.open_connection(host, 80)
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

async def client(number, keep):
    connection = None
    await asyncio.sleep(pause * number / 10)
    while True:
        began = time.monotonic()
        stats["sent"] += 1
        try:
            connection = await asyncio.wait_for(exchange(connection, keep), 10)
        except Exception as error:
            if connection:
                connection[1].close()
            connection = None
            stats["failed"] += 1
            text = f"{'kept' if keep else 'fresh'}: {type(error).__name__}: {error}"[:300]
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
    clients = [client(each, each < keeping) for each in range(keeping + opening)]
    await asyncio.wait_for(asyncio.gather(*clients), 3000)  # ends by itself

asyncio.run(main())
"""


def pod(
    name: str,
    namespace: str,
    model: str,
    body: dict[str, Any],
    image: str,
    *,
    keeping: int = 6,
    opening: int = 4,
    pause: float = 0.08,
) -> dict[str, Any]:
    """Return a pod whose clients send `1 / pause` requests a second each; it reports on `PORT`.

    Args:
        name: of the pod.
        namespace: of the model, and the pod.
        model: whose Service they use.
        body: of every request.
        image: with Python.
        keeping: clients that keep their connections.
        opening: clients that open one for each request.
        pause: seconds from one request of a client to its next.
    """
    arguments = [
        f"{model}.{namespace}.svc.cluster.local",
        f"/v2/models/{model}/infer",
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
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
