"""The machine that measures."""

from pathlib import Path


def processor_name() -> str:
    """Return the processor's name, family and model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    return f"{names.get('model name', '?')}, family {names.get('cpu family', '?')}, model {names.get('model', '?')}"
