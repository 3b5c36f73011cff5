"""The rules that a spec, a plan and the source must obey, and what runs them."""
