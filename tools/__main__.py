"""The program `freescale`, also as `python -m freescale_tools`: without its extra it says what to install."""

import importlib.util
import sys

EXTRA = ("jinja2", "matplotlib", "plotly", "rich", "typer")
"""What the extra `tools` installs. Training jobs need none of these."""


def main() -> None:
    """Run the command of the command line. Ends with status 1 and one line where a package of the extra is missing."""
    # Looked for before a command begins: most import plotly, jinja2 and matplotlib only when they show their result.
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        sys.exit(f"error: freescale needs {', '.join(missing)}, not installed here: pip install 'freescale[tools]'")
    from freescale_tools.cli import app

    app()


if __name__ == "__main__":
    main()
