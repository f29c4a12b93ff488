"""The entry point of ``tpl`` and of ``python -m tensorprojection``."""

from __future__ import annotations

import sys

from .cli.terminal import exit_while_starting


def main() -> None:
    """Run the command line; if a package is missing, print one line that says how to install it."""
    exit_while_starting()
    try:
        from .cli.main import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", __package__):  # no package of others: a mistake in this one
            raise
        print(
            f"tpl: the command line needs {missing}, which is not installed: "
            "pip install 'tensorprojection[studies]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
