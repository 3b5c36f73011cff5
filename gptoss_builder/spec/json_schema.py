"""The published JSON Schema and reference page of the spec, both made from `schema.py`.

`python -m gptoss_builder.spec.json_schema` writes them into a checkout, together with the
copies that the wheel carries; a test fails when one is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from gptoss_builder.files import write_text
from gptoss_builder.spec.reference import reference_page
from gptoss_builder.spec.schema import Spec

_DATA = "gptoss_builder/data"


def spec_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a spec as a user writes it, defaults left out or not.

    What it cannot say, the loader checks: that 12.0 is no whole number, that a key is given
    once, that nothing stands where a value belongs.
    """
    schema = Spec.model_json_schema()
    _title(schema, "gptoss-builder spec")
    for name, definition in schema["$defs"].items():
        _title(definition, name.removesuffix("Spec").lower())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gptoss-builder:spec:{schema['properties']['spec']['const']}",
    } | schema


def schema_text() -> str:
    """The published file's content."""
    return json.dumps(spec_schema(), indent=2, ensure_ascii=False) + "\n"


def packaged_schema() -> dict[str, Any]:
    """The JSON Schema that the installed package carries, for tools that read the file."""
    text = resources.files("gptoss_builder").joinpath("data/spec.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def published(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every generated file of a checkout, with the content that it should have."""
    for spec in sorted((root / "specs").glob("*.yaml")):  # first: the page shows one of the copies
        yield root / _DATA / "specs" / spec.name, spec.read_text(encoding="utf-8")
    yield root / "docs/spec.schema.json", schema_text()
    yield root / "docs/spec.md", reference_page()
    yield root / _DATA / "spec.schema.json", schema_text()


def main(arguments: list[str]) -> int:
    """Write the files into the checkout given, the current folder by default."""
    root = Path(arguments[0] if arguments else ".")
    if not (root / "specs").is_dir():
        print(f"{root}: this is no checkout: it has no specs folder", file=sys.stderr)  # noqa: T201
        return 2
    for path, text in published(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return 0


def _title(definition: dict[str, Any], title: str) -> None:
    """Give fields their own names as titles, for an editor's hover, not pydantic's."""
    definition["title"] = title
    for name, field in definition.get("properties", {}).items():
        field["title"] = name
        if "description" in field:
            field["description"] = " ".join(field["description"].split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
