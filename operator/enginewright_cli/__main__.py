"""Runs the command line as `python -m enginewright_cli`."""

from enginewright_cli import main

main()
