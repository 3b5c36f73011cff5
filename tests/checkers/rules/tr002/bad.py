# lies at: mine/norm.py
import importlib
import sys
from importlib import import_module as load

PACKAGE = "tri" + "ton"

a = importlib.import_module("triton.language")
b = __import__(PACKAGE)
c = load("".join(["tri", "ton"]))
d = load(f"{PACKAGE}.runtime")
e = sys.modules["triton"]
f = importlib.import_module(".language", package="triton")
