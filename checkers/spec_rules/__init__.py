"""Rules about one spec: a rule a file, named after its code; `checkers.registry` lists them."""
