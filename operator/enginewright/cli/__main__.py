"""Runs the command line as `python -m enginewright.cli`."""

from enginewright.cli import main

main()
