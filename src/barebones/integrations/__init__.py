"""Integrations: callbacks that keep a network sparse in the training loops of other libraries."""
