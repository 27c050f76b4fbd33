"""Pruning: the one idea. A method is data: a criterion, a number of rounds, a schedule and a rule of revival.

Read `rounds` (the loop), `steps` (the five steps of one round), `methods` (the rows) and `criteria` (the scores) first.
`probe` is what a criterion may ask; `gradients`, `batches` and `ranks` serve it. `selection` keeps the highest scores,
`counts` and `round` hold what a round leaves, `resuming` continues a run, and `prune` is the front door. `graphed`
takes whole rounds as CUDA graphs.
"""
