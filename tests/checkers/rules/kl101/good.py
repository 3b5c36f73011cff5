# lies at: gptoss_builder/model/moe.py
import torch


class Router:
    def forward(self, x_TE, ends_E):
        return torch.searchsorted(x_TE.flatten(), ends_E), dict(x_TE=1).items()


def loop_over_experts(offsets_E):
    return offsets_E.tolist()


class ReferenceRouter:
    def forward(self, x_TE):
        return x_TE.max().item()
