"""The published JSON Schema of `plan.json`; `python -m gptoss_builder.plan.json_schema` writes it.

The schema is made from the models, so that what is read back is checked against the same text
that `docs/plan.schema.json` publishes; a test fails when that file is stale.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from gptoss_builder.files import write_text
from gptoss_builder.plan.schema import Plan


@functools.cache
def plan_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a plan as it is written."""
    schema = Plan.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def schema_text() -> str:
    """The published file's content."""
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema to the path given, `docs/plan.schema.json` by default."""
    write_text(Path(arguments[0] if arguments else "docs/plan.schema.json"), schema_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
