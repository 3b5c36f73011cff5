"""The trainer: data, loss, optimizer, checkpoints and the loop over them."""
