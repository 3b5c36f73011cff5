"""A count of what really ran, so that a run can be compared with its plan.

The bodies of the ops count themselves at the place where the work is launched. They run on
every call, eager or compiled; nothing is counted while a graph is traced.
"""

from __future__ import annotations

from collections import Counter

launches: Counter[str] = Counter()
"""Calls by name: `up:triton`, `up:grouped_mm`, `up:loop`, `products:loop`, … since the start of
the process."""
