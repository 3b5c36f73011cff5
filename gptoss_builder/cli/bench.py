"""gptoss-bench: does it work on this machine, and how fast is the kernel."""

from __future__ import annotations

import argparse
import math
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptoss_builder.cli.command import add_version, run_command
from gptoss_builder.cli.extras import TRAINING, require_packages
from gptoss_builder.errors import InputError, RunError, SpecError
from gptoss_builder.plan.schema import Plan
from gptoss_builder.targets import ARCHITECTURES, lookup

if TYPE_CHECKING:
    import torch

    from gptoss_builder.model.transformer import Transformer

STEPS = 5
DISPATCHES = ("stacked", "grouped_mm", "triton_grouped")
EXPERTS, TOP_K = 4, 2
SEQUENCES, LENGTH = 2, 63
LIMITS = {"fp32": 1e-4, "bf16": 5e-2}
"""Largest relative difference between two dispatches: a whole model's worth of rounding (2e-2 seen
in bf16). One wrong row of the 126 makes 9e-2."""
SCRIPTS = {"w1w3": "w1w3", "moe": "moe_layer"}
"""Modules of the folder benchmarks, by command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 when all is well, 1 when a check failed, 2 for wrong usage."""
    return run_command("gptoss-bench", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options, rest = _parser().parse_known_args(arguments)
    if options.what == "smoke":
        if rest:
            raise InputError(f"smoke does not know {' '.join(rest)}; see --help")
        smoke(options.target)
    else:
        _script(SCRIPTS[options.what], rest)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gptoss-bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    smoke_parser = commands.add_parser(
        "smoke",
        help="the dispatches agree in values and gradients; five steps, a save and a load",
    )
    smoke_parser.add_argument(
        "--target", help="card, architecture or cpu; by default what this machine has"
    )
    for name, script in SCRIPTS.items():
        commands.add_parser(name, add_help=False, help=f"run benchmarks.{script} of a checkout")
    add_version(parser)
    return parser


def _script(name: str, arguments: Sequence[str]) -> None:
    root = Path(__file__).parents[2]
    script = root / "benchmarks" / f"{name}.py"
    if not script.is_file():
        raise InputError(f"benchmarks/{name}.py is not here: run it from a checkout of the project")
    require_packages("a benchmark", *TRAINING)
    if not ({"-h", "--help"} & set(arguments)) and _this_machine() == "cpu":
        raise InputError("it times kernels on a GPU, and no CUDA GPU is available here")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(root))
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


def smoke(target: str | None) -> None:
    """Compare the dispatches, then train, save and load with the last of them.

    Args:
        target: card, architecture or `cpu`; None takes what this machine has.

    Raises:
        InputError: no dispatch can run there, it is not this machine, or torch is not installed.
        RunError: two dispatches differ, or what was loaded is not what was saved.
    """
    require_packages("the smoke test", *TRAINING)
    target = target or _this_machine()
    # Every token visits every expert here: where two choices all but tie, the rounding of another
    # dispatch chooses otherwise in the next layer, which is no fault of it.
    plans = {
        name: plan for name in DISPATCHES if (plan := _plan(name, target, EXPERTS)) is not None
    }
    if not plans:
        raise InputError(f"no dispatch can run on {target}; give another --target")
    _compare_dispatches(plans)
    chosen = next(reversed(plans))
    plan = _plan(chosen, target, TOP_K)
    assert plan is not None  # it differs from one that could be made by the number of choices
    _train(chosen, plan)


def _compare_dispatches(plans: dict[str, Plan]) -> None:
    first, *others = plans
    if not others:
        print(f"only {first} can run here, so there is nothing to compare it with")
        return
    expected = _step(plans[first])
    for dispatch in others:
        found = _step(plans[dispatch])
        worst, name = max((_difference(found[name], expected[name]), name) for name in expected)
        print(f"{dispatch}: values and gradients within {worst:.1e} of {first} ({name})")
        if not worst <= LIMITS[plans[dispatch].execution.precision]:
            raise RunError(f"{dispatch} differs by {worst:.1e} from {first} in {name}")


def _this_machine() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return "sm{}{}".format(*torch.cuda.get_device_capability())


def _plan(dispatch: str, target: str, top_k: int) -> Plan | None:
    from gptoss_builder.api import make_plan

    try:
        return make_plan(_spec(dispatch, target, top_k), target=target)
    except SpecError as error:
        print(f"{dispatch}: cannot run on {target}: {error}")
        return None


def _spec(dispatch: str, target: str, top_k: int) -> dict[str, Any]:
    arch = lookup(target).arch
    low = arch != "cpu" and ARCHITECTURES[arch].bf16
    return {
        "spec": 1,
        "name": "smoke",
        "model": {
            "vocab": 256,
            "d_model": 64,
            "layers": 2,
            "init_std": 0.1,
            "attention": {
                "heads": 4, "kv_heads": 2, "head_dim": 16, "pattern": ["window", "full"],
                "window": 16,
            },
            "moe": {
                "experts": EXPERTS, "top_k": top_k, "shared_experts": 1, "d_ff": 72,
                "dispatch": dispatch,
            },
        },
        "training": {
            "context": 64, "micro_batch": 2, "steps": STEPS, "eval_tokens": 128,
            "precision": "bf16" if low else "fp32", "optimizer": {"lr": 1.0e-3},
        },
        "data": {"path": "unused"},
        "target": {"gpu": target},
    }  # fmt: skip


def _step(plan: Plan) -> dict[str, torch.Tensor]:
    """Logits and every gradient of one batch, by the plan's own precision."""
    import torch

    from gptoss_builder.model.build import build
    from gptoss_builder.train.optim import MixedPrecision

    model = build(plan)
    module = MixedPrecision(model, plan.execution.precision).module
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(256, (SEQUENCES, LENGTH), generator=generator).to(device)
    logits, aux = module(tokens_BT)
    targets = tokens_BT.roll(-1, 1).flatten()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets) + 0.01 * aux
    loss.backward()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {"logits": logits.detach(), **gradients}


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    error, norm = (actual.double() - expected.double()).norm(), expected.double().norm()
    difference = float(error / norm if norm else error)
    return math.inf if math.isnan(difference) else difference


def _train(dispatch: str, plan: Plan) -> None:
    """Train a few steps on random letters; what is loaded must be what was saved, bit for bit."""
    import torch

    from gptoss_builder.model.build import build
    from gptoss_builder.train.checkpoint import CHECKPOINTS, load_newest, restore_model
    from gptoss_builder.train.loop import train

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        letters = torch.randint(97, 123, (20_000,), generator=torch.Generator().manual_seed(0))
        text.write_bytes(bytes(letters.tolist()))
        assert plan.spec.data is not None
        data = plan.spec.data.model_copy(update={"path": str(text)})
        plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"data": data})})
        result = train(plan, run_dir=Path(folder, "run"))
        if result.held_out is None or not result.steps_done == STEPS:
            raise RunError(f"{dispatch}: trained {result.steps_done} of {STEPS} steps")
        checkpoint = load_newest(Path(folder, "run", CHECKPOINTS))
        if checkpoint is None:
            raise RunError(f"{dispatch}: the run left no checkpoint")
        fresh = build(plan)
        restore_model(checkpoint, fresh)
        _compare(result.model, fresh)
    print(f"{dispatch}: {STEPS} steps trained, saved and loaded; {result.held_out}")


def _compare(trained: torch.nn.Module, loaded: Transformer) -> None:
    import torch

    for name, parameter in loaded.named_parameters():
        if not torch.equal(parameter, trained.get_parameter(name)):
            raise RunError(f"{name} is not what was saved")


if __name__ == "__main__":
    sys.exit(main())
