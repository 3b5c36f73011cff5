# lies at: mine/broken.py
def whole():
    return 1
