# lies at: gptoss_builder/spec/schema.py
from gptoss_builder.spec import schema

HARD_CAP = 16384
schema.HARD_CAP = 2 * 8192
setattr(schema, "HARD_CAP", 8193)
