"""The command line: `vitrina` on a shell. Everything heavy is imported by the command that needs it."""

import sys


def main() -> None:
    """Run the command and end with the exit code that says how it went."""
    from vitrina.cli import app, exits
    from vitrina.errors import VitrinaError

    try:
        app.main()
    except VitrinaError as error:
        sys.exit(exits.report(error))
