"""Write the golden files: `python tests/golden/make_golden.py [names ...]`.

Every file holds what one part of the project gives for fixed inputs, and under "made_with" the commit it was made
with. `test_golden.py` repeats all of it. Make files anew only where a change of results is wanted, and say so in the
commit: `golden_changes.py` shows what would change.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, (HERE.parent / "comm").rglob("exact*"))]


def text(value: Any, *, depth: int = 0) -> str:
    """JSON; what fits stands in one line."""
    line = json.dumps(value, sort_keys=True)
    if len(line) + depth <= 118 or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {text(item, depth=depth + 1)}" for key, item in sorted(value.items())]
    else:
        parts = [text(item, depth=depth + 1) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    pad = "\n" + " " * depth
    return f"{begin}{pad} " + f",{pad} ".join(parts) + f"{pad}{end}"


def main(arguments: list[str]) -> None:
    from golden_data import FILES
    from golden_sections import RESUMED, SECTIONS, kept

    made_with = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, check=True, capture_output=True, text=True
    )
    for name in arguments or SECTIONS:
        document = SECTIONS[name](FILES)
        found = {"made_with": made_with.stdout.strip(), "golden": kept(name, document)}
        if name in RESUMED:
            found["then"] = kept("then", RESUMED[name](FILES, document))
        (HERE / f"{name}.json").write_text(text(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
