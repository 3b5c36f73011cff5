# lies at: mine/layer.py
import importlib.util

from mine.flags import HAS_TRITON


def layer(x, w13):
    if not HAS_TRITON:
        raise ImportError("install triton, or set model.moe.dispatch: stacked")
    return w1w3(x, w13)


def require():
    if importlib.util.find_spec("triton") is None:
        raise ImportError("install triton")


def chosen(plan, x):
    return w1w3(x) if plan.execution.up_products == "triton" else loop(x)
