# lies at: mine/layer.py
import importlib.util

from mine.flags import HAS_TRITON, triton_available


def layer(x, w13):
    if HAS_TRITON:
        return w1w3(x, w13)
    return loop(x, w13)


implementation = "triton" if triton_available() else "loop"

if importlib.util.find_spec("triton") is None:
    dispatch = "stacked"
