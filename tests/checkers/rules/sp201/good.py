# lies at: mine/read.py
import yaml


class Own(yaml.SafeLoader):
    pass


a = yaml.safe_load(text)
b = yaml.load(text, Loader=yaml.CSafeLoader)
c = yaml.load(text, Loader=Own)
d = yaml.load(text, Loader=yaml.CSafeLoader if fast else yaml.SafeLoader)
