"""Runs one step of the proof in a separate process, so that a crash or a hang fails only that step."""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hack.gpu_proof.pod import StepError, isolate_network


def main(name: str, context: str, result: str) -> None:
    """Run a step and write its result; always end normally.

    Args:
        name: of the step.
        context: fields of a `Context` as JSON.
        result: file to write.
    """
    isolated = isolate_network()
    from hack.gpu_proof.groups import order_steps  # noqa: PLC0415 - loads what the network must not share
    from hack.gpu_proof.steps import Context, NeedsDeviceError, RefusedError  # noqa: PLC0415 - likewise

    fields = json.loads(context)
    for item in ("work", "shared", "models"):
        fields[item] = Path(fields[item])
        fields[item].mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    outcome: dict[str, Any]
    try:
        (chosen,) = (registered for registered in order_steps() if registered.name == name)
        outcome = {"status": "passed", "figures": chosen.run(Context(**fields))}
    except NeedsDeviceError:
        outcome = {"status": "needs a device"}
    except RefusedError as error:
        outcome = {"status": "refused", "message": str(error)}
    except StepError as error:
        outcome = {"status": "failed", "message": str(error)}
    except Exception as error:  # noqa: BLE001 - the other steps run on
        outcome = {
            "status": "failed",
            "message": repr(error),
            "trace": traceback.format_exc()[-1500:],
        }
    outcome |= {"seconds": round(time.monotonic() - began, 2), "isolated": isolated}
    temporary = Path(f"{result}.tmp")
    temporary.write_text(json.dumps(outcome, default=str))
    temporary.rename(result)
    sys.stdout.flush()
    os._exit(0)  # a native library may not survive a regular exit


if __name__ == "__main__":
    main(*sys.argv[1:])
