# lies at: gptoss_builder/train/loop.py
def train(plan, device):
    return build(plan, device)


def elsewhere(plan, device):
    try:
        require_memory(plan, device)
    except RuntimeError as error:
        print(error)
