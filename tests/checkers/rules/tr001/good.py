# lies at: mine/norm.py
# It is about triton, and imports none of it.
import tritonclient
from mine import not_triton

NAME = "triton"
