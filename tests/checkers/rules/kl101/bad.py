# lies at: gptoss_builder/model/moe.py
import torch


class Router:
    def forward(self, x_TE):
        largest = x_TE.max().item()
        counts = torch.bincount(x_TE.argmax(-1))
        where = (x_TE > 0).nonzero()
        return largest, counts.tolist(), where


def loop_over_experts(offsets_E):
    return offsets_E.tolist()
