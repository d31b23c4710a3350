"""Many runs: a prompt, a tool set or a model on a whole table, and what the answers tell.

A `batch` has `cases` (rows × variants × repeats) and how far they are (`entries`); its `driver`
lets an executor make their runs (`runs`, on a cluster `dask`, which sends `parcels`), and
`scorers`, `judges` and a person (`review`) score them; `tables` and `statistics` say what came of
it.
"""
