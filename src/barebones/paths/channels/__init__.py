"""Channels: the model's forward pass on the numbers of its channels, with a rule for each torch function."""
