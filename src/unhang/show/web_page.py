"""The report as one HTML file that needs nothing else: no network, no server, no second file.

Foreign text reaches the page only as JSON in a script element that no browser runs; the page's own script writes it with
`textContent`. A content security policy names the hashes of that script and of the style sheet and forbids all else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files

from unhang.model import Case, Diagnosis, WaitsFor
from unhang.show.page_data import page_data

_SCRIPTS = ("page.js", "graph.js", "lanes.js", "lanes_input.js", "start.js")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def _asset(name: str) -> str:
    return files("unhang.show").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii") + "'"


def _inert(data: object) -> str:
    """JSON that cannot end its script element, whatever it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_html(diagnosis: Diagnosis, case: Case, waits: WaitsFor) -> str:
    """The whole page; the same input gives the same text.

    Blocks: for the time of reading the source lines that it quotes, and for about a second per million calls.
    """
    data = page_data(diagnosis, case, waits)
    style = _asset("page.css")
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    slots = {
        "policy": policy,
        "title": html.escape(f"{data['outcome'].upper()}: {data['headline']}"[:160]),
        "style": style,
        "data": _inert(data),
        "script": script,
    }
    # One pass: a slot's name within foreign text is not a slot.
    return _SLOT.sub(lambda match: slots[match[1]], _asset("page.html"))
