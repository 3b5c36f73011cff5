# lies at: mine/layer.py
from gptoss_builder.errors import GptossError, MissingTritonError
from gptoss_builder.kernels.w1w3 import w1w3


def named(x, w13):
    try:
        return w1w3(x, w13)
    except MissingTritonError as error:
        raise SystemExit(f"set model.moe.dispatch: stacked ({error})") from error


def command(run):
    try:
        return run()
    except GptossError as error:
        print(error)
        return error.exit_code


def elsewhere(path):
    try:
        return path.read_text()
    except OSError:
        return ""
