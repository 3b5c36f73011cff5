"""The reference page of the spec, made from the field table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import resources

from gptoss_builder.spec.fields import ITEM, Pattern, SpecField, fields
from gptoss_builder.spec.parsed import MAX_DEPTH, MAX_VALUES
from gptoss_builder.spec.text_file import MAX_BYTES

_INTRODUCTION = f"""\
# The spec

<!-- Generated from gptoss_builder/spec/schema.py by `make docs`; edit that file. -->

One YAML file describes a model and how it is trained. Every field is in one of the tables below the
example; a key that is not is refused. `docs/spec.schema.json` is the same as a JSON Schema, for
editors: put this line at the top of a spec.

```yaml
# yaml-language-server: $schema=../docs/spec.schema.json
```

## How YAML is read

- The file is UTF-8, whatever the locale, with or without a byte order mark; one document, at most
  {MAX_BYTES // 1024} KiB, {MAX_VALUES} keys and values and {MAX_DEPTH} levels.
- Numbers are those of YAML 1.2, in decimal: `1e-4`, `2e-5`, `1.5e5`, `1e+4` and `.5` are numbers.
  Refused, with what to write instead: `010`, `08`, `0x10`, `0o10`, `1_000`, `1:30`, `131072k`, and
  numbers that a double cannot hold. `-0.0` is `0.0`.
- Truth values are `true` and `false`; `yes`, `no`, `on` and `off` are text.
- Nothing is converted: `12.0` is not a whole number, `"12"` and `true` are no numbers. A whole
  number may stand where a number belongs.
- A key is given once. Where a field may be absent, `null` says so; nothing after the colon is
  refused, because it is mostly a line that was lost.
- Anchors, aliases, merge keys (`<<`) and tags (`!!`) are refused: each thing is said where it
  stands, and nothing in a spec is ever executed.
"""


EXAMPLE = "gpt_oss_lite"
"""The shipped spec that the page shows whole."""
_EXAMPLE_HEAD = f"""\
## A whole spec

`specs/{EXAMPLE}.yaml`, which `gptoss-build --example {EXAMPLE}` prints:
"""


def reference_page() -> str:
    """Write the page, in Markdown; the example is the copy that the package carries."""
    shipped = resources.files("gptoss_builder") / "data" / "specs" / f"{EXAMPLE}.yaml"
    example = f"{_EXAMPLE_HEAD}\n```yaml\n{shipped.read_text(encoding='utf-8')}```\n"
    sections = [field for field in fields().values() if field.kind == "section"]
    return "\n".join([_INTRODUCTION, example, *(_section(section) for section in sections)])


def _section(section: SpecField) -> str:
    heading = _dotted(section.pattern) or "The outermost level"
    heading = f"`{heading}`" if section.pattern else heading
    rows = "\n".join(_rows(section))
    return (
        f"## {heading}\n\n{_flat(section.doc)}\n\n"
        f"| field | takes | default | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _rows(section: SpecField) -> Iterator[str]:
    for name in section.names:
        field = fields()[(*section.pattern, name)]
        yield f"| `{name}` | {_takes(field)} | {_default(field)} | {_flat(field.doc)} |"


def _takes(field: SpecField) -> str:
    if field.kind == "section":
        takes = (
            f"`{field.choices[0]}`, or a section, below" if field.choices else "a section, below"
        )
    elif field.kind in {"integer", "number"}:
        what = "a whole number" if field.kind == "integer" else "a number"
        takes = f"{what} {field.range.told(untold=math.inf)}"
    else:
        takes = field.told()
    return takes + (", or `null`" if field.nullable else "")


def _default(field: SpecField) -> str:
    if field.required:
        return "required"
    if field.kind == "section" and isinstance(field.default, dict):
        return "its fields' defaults"
    return f"`{json.dumps(field.default)}`" if field.default != "auto" else "`auto`"


def _dotted(pattern: Pattern) -> str:
    return ".".join(pattern).replace(f".{ITEM}", ITEM)


def _flat(doc: str) -> str:
    return " ".join(doc.split()).replace("|", "\\|")
