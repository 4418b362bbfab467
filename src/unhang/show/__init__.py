"""What a diagnosis looks like: text for a terminal, JSON for programs, one HTML page for people."""

from unhang.show.report_json import to_json
from unhang.show.text import render_text
from unhang.show.web_page import render_html

__all__ = ["render_html", "render_text", "to_json"]
