"""A value as the user gave it: what it is, and the text that it was written as."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gptoss_builder.findings import printable


class Given(NamedTuple):
    """A value, and how it was written."""

    value: Any
    written: str | None = None
    """The text of a scalar that stands on one line, quotes included; None otherwise."""
    plain: bool = False
    """Whether it was written without quotes."""

    def shown(self) -> str:
        """Show the value in a message, short and printable."""
        if isinstance(self.value, str) and not (self.plain and self.written):
            return f"the text {printable(json.dumps(self.value, ensure_ascii=False))}"
        if self.written is not None:
            return f"`{printable(self.written)}`"
        if isinstance(self.value, (dict, list)):
            return "a section" if isinstance(self.value, dict) else "a list"
        if self.value is None or isinstance(self.value, bool):
            return f"`{json.dumps(self.value)}`"
        if isinstance(self.value, (int, float)):
            return f"`{printable(_digits(self.value))}`"
        return f"a Python {type(self.value).__name__}"


def _digits(value: float) -> str:
    """Write a number; Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
