"""Publishes or collects in a process of its own, once for each line of standard input.

A line is the time of the list of what is needed, at which artefacts are unused for long. A publisher
answers with the key that it has published or found.
"""

import secrets
import sys
import time
from datetime import datetime
from pathlib import Path

from enginewright_contract.collection import LEAST_AGE_SECONDS, CollectTask
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store
from enginewright_runtime.store.collection import collect
from enginewright_runtime.store.volume import VolumeMedium

from tests.support.store_process import publish

_SPREAD = 20  # ms


def main() -> None:
    """Run one role of the command line, again for each line of the standard input: publish FOLDER KEY..., or collect."""
    role, *arguments = sys.argv[1:]
    logs.configure(role)
    paths = Paths.from_environment()
    medium = VolumeMedium(paths.store, settled_after=0)
    for line in sys.stdin:
        time.sleep(secrets.randbelow(_SPREAD) / 1000)  # so that any step meets any other one
        if role == "publish":
            key = secrets.choice(arguments[1:])
            publish(Store(medium), key, Path(arguments[0]))
            print(key, flush=True)
        else:
            task = CollectTask(
                job="c",
                keep=(),
                as_of=datetime.fromisoformat(line.strip()),
                min_age_seconds=LEAST_AGE_SECONDS,
                max_age_seconds=0,
            )
            collect(medium, task)
            print("done", flush=True)


if __name__ == "__main__":
    main()
