"""Scripts that check a result, time it and print a table: `python -m benchmarks.<name>`."""
