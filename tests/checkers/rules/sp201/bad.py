# lies at: mine/read.py
import yaml
from yaml import load, unsafe_load

a = yaml.load(text)
b = yaml.load(text, Loader=yaml.Loader)
c = load(text, yaml.FullLoader)
d = unsafe_load(text)
e = yaml.full_load(text)


class Own(yaml.Loader):
    pass


f = yaml.load(text, Loader=Own)
