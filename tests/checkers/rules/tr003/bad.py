# lies at: mine/norm.py
import triton
from triton import jit as compiled

jit = triton.jit


@triton.jit
def first(x_ptr):
    pass


@compiled
def second(x_ptr):
    pass


@triton.autotune(configs=[], key=[])
@jit
def third(x_ptr):
    pass


fourth = triton.jit(lambda x_ptr: None)
