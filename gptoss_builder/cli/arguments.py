"""Arguments that several commands take: their types, and the data that they put elsewhere."""

from __future__ import annotations

import argparse

from gptoss_builder.errors import InputError
from gptoss_builder.plan.schema import Plan


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return int(text)


def count_or_none(text: str) -> int:
    """A whole number from 0, which is none."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0")
    return int(text)


def path(text: str) -> str:
    """A path that names something."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def data_path(text: str) -> str:
    """A path that the checkpoints and the record of a run can hold."""
    return utf8(path(text))


def utf8(text: str) -> str:
    """Text that was UTF-8 on the command line."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("it is not UTF-8") from error
    return text


def with_data(plan: Plan, *, data: str | None = None, tokenizer: str | None = None) -> Plan:
    """The plan with another `data.path` or `data.tokenizer`, where one is given.

    Raises:
        InputError: its spec has no data section.
    """
    given = {
        field: value
        for field, value in (("path", data), ("tokenizer", tokenizer))
        if value is not None
    }
    if not given:
        return plan
    if plan.spec.data is None:
        raise InputError("the spec has no data section that --data or --tokenizer could replace")
    replaced = plan.spec.data.model_copy(update=given)
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"data": replaced})})
