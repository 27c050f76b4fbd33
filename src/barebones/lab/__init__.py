"""The lab: experiments with the library, of any paper.

An `experiment` is resolved by its data set's row in `protocols` and runs in a `folder`: `run` goes through its stages
(pretrain, prune, shrink, train), whose numbers `metrics` writes down. `checksums` say which run a file belongs to. A
`sweep` runs the experiments of `recipes` with `processes`, here or on a `ray` cluster. `records`, `tables`,
`figures` and the `report` show the results.
"""
