"""The trainer: data, loss, optimizer, checkpoints and the loop over them.

This package has the name of the public function `gptoss_builder.train`. Once anything has imported
it, Python makes it the attribute of that name, so it can be called as that function.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptoss_builder.train.loop import Result


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Result:
        # by name: api is above this package and imports it
        result: Result = import_module("gptoss_builder.api").train(*arguments, **options)
        return result


sys.modules[__name__].__class__ = _Callable
