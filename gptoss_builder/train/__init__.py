"""The trainer: data, loss, optimizer, checkpoints and the loop over them.

This package has the name of the public function `gptoss_builder.train`. Once anything has imported
it, Python makes it the attribute of that name, so it can be called as that function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptoss_builder.plan.schema import Plan
    from gptoss_builder.train.loop import Result


class _Callable(ModuleType):
    def __call__(self, plan: Plan, **options: Any) -> Result:
        from gptoss_builder.train.loop import train

        return train(plan, **options)


sys.modules[__name__].__class__ = _Callable
