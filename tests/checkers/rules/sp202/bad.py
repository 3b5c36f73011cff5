# lies at: mine/read.py
import pickle
from pickle import loads

import numpy as np
import torch

a = pickle.load(file)
b = loads(data)
c = torch.load("optimizer.pt")
d = torch.load("optimizer.pt", weights_only=False)
e = np.load("tokens.npy", allow_pickle=True)
