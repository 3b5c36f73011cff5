"""The plan: everything that a spec comes to on a target, decided once, in pure Python."""
