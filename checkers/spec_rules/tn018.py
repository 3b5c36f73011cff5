from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import DTYPE_BYTES, MANIFEST, data_path, has_manifest, read_shards
from checkers.rule import DataRule, Problem
from gptoss_builder.spec.schema import Spec


@partial(
    DataRule,
    code="TN018",
    title="token shards are what their manifest says",
    why="Ids written as one type and read as another, or a vocabulary that its type cannot "
    "hold, give tokens that look real and mean nothing: uint16 wraps at 65,536.",
    bad='data: {path: shards}   # manifest.json: {"dtype": "uint16", "vocab": 70000, …}',
    good='data: {path: shards}   # manifest.json: {"dtype": "uint32", "vocab": 70000, …}',
    reads=("data.path",),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    path = data_path(spec, directory)
    if path is None or not has_manifest(path):
        return
    shards, rewrite = read_shards(path), "write the shards again"
    if shards is None:
        yield Problem("data.path", f"{MANIFEST} there is not a manifest of token shards", rewrite)
    elif shards.vocab > 2 ** (8 * DTYPE_BYTES[shards.dtype]):
        yield Problem(
            "data.path",
            f"the shards are {shards.dtype}, which cannot hold a vocabulary of {shards.vocab}",
            rewrite,
        )
    elif shards.wrong:
        more = f", and {len(shards.wrong) - 1} more" if len(shards.wrong) > 1 else ""
        yield Problem("data.path", f"shard {shards.wrong[0]}{more}", rewrite)
