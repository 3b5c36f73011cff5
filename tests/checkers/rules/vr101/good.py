# lies at: gptoss_builder/train/loop.py
def train(plan, device):
    prepare(plan, device)
    return build(plan, device)


def prepare(plan, device):
    try:
        require_memory(plan, device)
    except RuntimeError as error:
        raise SystemExit(1) from error
