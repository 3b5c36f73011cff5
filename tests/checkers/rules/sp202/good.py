# lies at: mine/read.py
import json

import numpy as np
import torch
from safetensors.torch import load_file

a = json.loads(text)
b = load_file("model.safetensors")
c = torch.load("rng.pt", weights_only=True)
d = np.load("tokens.npy")
