"""Pruning. A method is a row of data: a criterion, a number of rounds, a schedule and a rule of revival.

Read `rounds` (the loop), `steps` (the five steps of one round), `methods` (the rows) and `criteria` (the scores) first.
`probe` gives a criterion gradients, with the help of `gradients`, `batches` and `ranks`. `selection` keeps the highest
scores, `round_stats` and `round` hold the numbers and masks of a round, `resuming` continues a run, and `prune` is the
function that most users call.
"""
