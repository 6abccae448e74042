"""The command line `vitrina`. Heavy modules are imported only by the commands that need them."""

import sys


def main() -> None:
    """Run the command and exit with the code of its outcome."""
    from vitrina.cli import app, exits
    from vitrina.errors import VitrinaError

    try:
        app.main()
    except VitrinaError as error:
        sys.exit(exits.report(error))
