"""Pruning. A method is a row of data: a criterion, a number of rounds, a schedule and a rule of revival.

Read `rounds` (the loop), `methods` (the rows) and `criteria` (the scores) first. `probe` gives a criterion gradients,
with the help of `gradients`, `batches`, `masking` and `ranks`. `selection` keeps the highest scores, also of `shards`,
`round` holds the masks and numbers of a round, `resuming` continues a run, and `prune` is the function that most users
call.
"""
