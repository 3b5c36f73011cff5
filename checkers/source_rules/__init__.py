"""Rules about Python source: a rule a file, named after its code."""
