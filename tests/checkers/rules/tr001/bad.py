# lies at: mine/norm.py
import torch
import triton.language as tl
from triton import jit as compiled
from torch._inductor.runtime.triton_compat import triton as hidden


def kernel():
    from triton.runtime import driver

    return driver, tl, compiled, hidden, torch
