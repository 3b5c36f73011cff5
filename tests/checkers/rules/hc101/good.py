# lies at: gptoss_builder/spec/schema.py
from gptoss_builder.spec.schema import HARD_CAP as cap

HARD_CAP = 8192
smaller = cap // 2
