"""The command line `vitrina`. Heavy modules are imported only by the commands that need them."""

import gc
import sys


def main() -> None:
    """Run the command and exit with the code of its outcome."""
    # Imported classes and functions stay: to look for garbage among them takes a tenth of a short command.
    gc.set_threshold(100_000, 20)
    from vitrina.cli import app, exits
    from vitrina.errors import VitrinaError

    try:
        app.main()
    except VitrinaError as error:
        sys.exit(exits.report(error))
