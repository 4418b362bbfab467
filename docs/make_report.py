"""Writes docs/reference/report.md from the schema of `report.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "src" / "unhang" / "show" / "report.schema.json"
PAGE = ROOT / "docs" / "reference" / "report.md"

INTRO = """\
# The report as JSON

`unhang run` and `unhang attach` leave a `report.json`, and `unhang diagnose --format json` prints one. Its
[schema](../../src/unhang/show/report.schema.json) (JSON Schema 2020-12) is checked against every report of the tests. Keys are never renamed or
removed within `unhang.report/1`; new ones may come, so readers skip what they do not know.

```python
import json

report = json.load(open("unhang-reports/20260101-120000/report.json"))
for finding in report["findings"]:
    print(finding["cause"], finding["culprit_ranks"], finding["location"])
```
"""


def kind(value: dict[str, Any]) -> str:
    """The type of a value in a few words."""
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        names = [f"`{name}`" for name in value["enum"] if name is not None]
        return ", ".join(names) if len(names) <= 8 else "a name"
    if "$ref" in value:
        return f"[{value['$ref'].rsplit('/', 1)[-1]}](#{value['$ref'].rsplit('/', 1)[-1]})"
    if "oneOf" in value:
        return " or ".join(kind(one) for one in value["oneOf"])
    if value["type"] == "array":
        return f"list of {kind(value['items'])}"
    types = value["type"] if isinstance(value["type"], list) else [value["type"]]
    return " or ".join(types)


def rows(properties: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """One row of the table for each key, and for each key of an object within."""
    for name, value in properties.items():
        yield f"| `{prefix}{name}` | {kind(value)} | {value.get('description', '')} |"
        inner = [value, *value.get("oneOf", ()), value.get("items", {})]
        for one in inner:
            mark = "[]" if one is value.get("items") else ""
            yield from rows(one.get("properties", {}), f"{prefix}{name}{mark}.")


def page() -> str:
    """The whole page."""
    schema = json.loads(SCHEMA.read_text())
    head = ["| key | type | |", "|---|---|---|"]
    parts = [INTRO, *head, *rows(schema["properties"])]
    for name, value in schema["$defs"].items():
        parts += ["", f"## {name}", "", *head, *rows(value["properties"])]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE}: {len(page().splitlines())} lines")
