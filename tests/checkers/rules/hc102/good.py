# lies at: gptoss_builder/kernels/w1w3.py
HARD_CAP = 8192


def w1w3(x_TD, w13_EFD):
    check(x_TD)
    return launch(x_TD, w13_EFD)


def check(x_TD):
    if x_TD.shape[1] > HARD_CAP:
        raise ValueError("use a narrower model")
