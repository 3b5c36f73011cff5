from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import data_path, has_manifest, read_shards
from checkers.rule import DataRule, Problem
from gptoss_builder.spec.schema import Spec


@partial(
    DataRule,
    code="TN017",
    title="token shards hold ids below the vocabulary",
    why="An id at or above vocab has no row in the embedding: on a GPU the run dies in a device "
    "assert that names neither the token nor the file.",
    bad="model: {vocab: 50000}\ndata: {path: shards}   # whose manifest says vocab 50304",
    good="model: {vocab: 50304}\ndata: {path: shards}",
    reads=("model.vocab", "data.path"),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    path = data_path(spec, directory)
    shards = read_shards(path) if path is not None and has_manifest(path) else None
    if shards is not None and shards.vocab > spec.model.vocab:
        yield Problem(
            "model.vocab",
            f"vocab is {spec.model.vocab}, but the shards hold ids up to {shards.vocab - 1}",
            f"set vocab to at least {shards.vocab}",
        )
