"""Pruning. A method is a row of data: a criterion, a number of rounds, a schedule and a rule of revival.

Read `rounds` (the loop), `methods` (the rows) and `criteria` (the scores) first. `probe` gives a criterion gradients,
with the help of `gradients`, `batches` and `masking`. `selection` keeps the highest scores, `processes` those of a
sharded network, `round` holds the masks and numbers of a round, `resuming` continues a run, and `prune` is the function
that most users call.
"""
