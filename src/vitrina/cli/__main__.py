"""`python -m vitrina.cli` is `vitrina`: how commands start other commands with the same interpreter."""

from vitrina.cli import main

main()
