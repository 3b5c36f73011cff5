# lies at: gptoss_builder/kernels/w1w3_triton.py
import triton


@triton.jit
def load_rows(x_ptr):
    return deeper(x_ptr)


@triton.jit
def deeper(x_ptr):
    return x_ptr


@triton.jit
def w1w3_kernel(x_ptr):
    load_rows(x_ptr)


@triton.jit
def norm_kernel(x_ptr):
    deeper(x_ptr)


def norm(x):
    norm_kernel[(1,)](x)
