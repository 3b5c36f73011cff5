# lies at: mine/layer.py
import contextlib

from gptoss_builder.errors import KernelError, MissingTritonError
from gptoss_builder.kernels import w1w3 as op
from gptoss_builder.kernels.w1w3 import w1w3


def swallowed(x, w13):
    try:
        return w1w3(x, w13)
    except RuntimeError:
        return reference(x, w13)


def bare(x, w13):
    try:
        return op.w1w3(x, w13)
    except:
        pass


def by_name(model, x):
    try:
        return model(x)
    except (ValueError, KernelError) as error:
        print(error)


def half(x, w13):
    try:
        return w1w3(x, w13)
    except MissingTritonError:
        if x.is_cuda:
            raise
        return reference(x, w13)


def suppressed(x, w13):
    with contextlib.suppress(Exception):
        return w1w3(x, w13)


def finally_returns(x, w13):
    try:
        h = w1w3(x, w13)
    finally:
        return None
