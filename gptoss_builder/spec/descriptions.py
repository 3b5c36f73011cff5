"""The texts beneath a model's fields, read from its source when a JSON Schema is made."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel


def describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Put the text beneath each field into the model's JSON Schema, as its description.

    pydantic's `use_attribute_docstrings` reads the source when the class is made, which is a
    tenth of the time that a check takes to start; the texts are needed only here.
    """
    for name, text in _texts(model.__module__)[model.__name__].items():
        schema["properties"][name]["description"] = text


@lru_cache(maxsize=8)
def _texts(module: str) -> dict[str, dict[str, str]]:
    """The text beneath each field of a module's classes, by class and field."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            texts = found[node.name] = {}
            for field, below in pairwise(node.body):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        texts[name] = inspect.cleandoc(text)
    return found
