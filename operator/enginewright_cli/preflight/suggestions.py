"""What can be pasted: options of the command that mend a finding.

The stages propose what a resource would say; whoever runs preflight needs the same as an option.
"""

import re
import shlex
from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding
from enginewright.contract.task import ShapeProfile

# one input of the YAML that stage `validate` proposes: runtime_image, shapes.py
_SIZES: Final = r"\[([0-9, ]*)\]"
_PROPOSAL: Final = re.compile(
    r"""\{input: (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^",}]+)),"""
    rf""" min: {_SIZES}, opt: {_SIZES}, max: {_SIZES}\}}"""
)


def suggested(finding: Finding) -> tuple[str, ...]:
    """Return the options that would mend it; () where none would."""
    if finding.reason is not Reason.SHAPE_PROFILE_MISSING:
        return ()
    profiles = [_profile(found) for found in _PROPOSAL.finditer(finding.message)]
    return tuple(
        f"--shapes {shlex.quote(option(each))}" for each in profiles if each.input.isprintable()
    )


def option(profile: ShapeProfile) -> str:
    """Return a profile as `--shapes` takes it, the inverse of `options.shape`."""
    corners = (profile.min, profile.opt, profile.max)
    return f"{profile.input}=" + ":".join("x".join(map(str, sizes)) for sizes in corners)


def _profile(found: "re.Match[str]") -> ShapeProfile:
    name, plain, *corners = found.groups()
    least, usual, most = (
        tuple(int(size) for size in sizes.split(",") if size.strip()) for sizes in corners
    )
    unquoted = re.sub(r"\\(.)", r"\1", name) if name is not None else plain
    return ShapeProfile(input=unquoted, min=least, opt=usual, max=most)
