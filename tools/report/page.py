"""Renders a report as a page: one HTML file that opens without a network.

The file contains plotly's script, the styles and the figures. The script is the bundle of plotly.js for plots with
two axes, as npm has it (`plotly.js-cartesian-dist-min`), compressed; the browser unpacks it. A content security
policy keeps the page from loading anything and from running other scripts. The template escapes the user's texts
(file names, columns, reasons).
"""

import base64
import gzip
import hashlib
import json
from pathlib import Path

import jinja2
from markupsafe import Markup

from freescale_tools.report.blocks import Report
from freescale_tools.report.plots import DARK

_FOLDER = Path(__file__).parent
_PLOTLY = _FOLDER / "bundle" / "plotly-cartesian.min.js.gz"


def page(report: Report) -> str:
    """The page as text: at most 1.5 MB, 0.7 MB of it plotly's script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["embedded"] = lambda figure: embedded(figure.to_json(validate=False))
    # The browser converts line ends before it computes the hash; reading text has done so, too.
    plotly, script = _PLOTLY.read_bytes(), (_FOLDER / "page.js").read_text(encoding="utf-8")
    hashes = (hashlib.sha256(one).digest() for one in (gzip.decompress(plotly), script.encode()))
    return environment.get_template("page.html").render(
        report=report,
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        plotly=Markup(base64.b64encode(plotly).decode()),
        script=Markup(script),
        script_hashes=[Markup(f"'sha256-{base64.b64encode(one).decode()}'") for one in hashes],
        dark=embedded(json.dumps(DARK)),
    )


def embedded(json_text: str) -> Markup:
    """JSON as the content of a script element. A `<` could end the element; in JSON it occurs only in strings."""
    return Markup(json_text.replace("<", "\\u003c"))
