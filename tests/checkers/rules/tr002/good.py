# lies at: mine/norm.py
import importlib

import_module = importlib.import_module
a = importlib.import_module("torch.nn")
b = importlib.util.find_spec("triton")
c = import_module("mine.triton")
