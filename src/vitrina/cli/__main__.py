"""Run `vitrina` as `python -m vitrina.cli`, by which commands start other commands with the same interpreter."""

from vitrina.cli import main

main()
