"""The model, plain PyTorch."""
