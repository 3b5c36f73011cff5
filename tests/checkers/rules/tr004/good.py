# lies at: mine/norm.py
exec("import torch")
print("install triton, or set stacked")
