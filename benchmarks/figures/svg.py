"""The files of `docs/images`: drawn by matplotlib, with the numbers that they show as their description."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@contextlib.contextmanager
def canvas(name: str, numbers: str, *, panels: int, width: float, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """The figure and its axes, side by side; width and height in inches. Writes `<name>.svg` at the end.

    Text stays text, and the bytes of the file depend only on what is drawn and on matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context(style):
        figure, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained", squeeze=False)
        yield figure, list(axes[0])
        metadata = {"Date": None, "Creator": None, "Description": numbers}
        figure.savefig(IMAGES / f"{name}.svg", facecolor="white", metadata=metadata)
        plt.close(figure)


def legend(figure: Any, colors: dict[str, str]) -> None:
    """One patch for each name, below the panels."""
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)


def numbers_in(path: Path) -> str:
    """The `numbers` with which a file was drawn."""
    (found,) = re.findall("<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    return found.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
