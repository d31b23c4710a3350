"""Many runs: a prompt, a tool set or a model on a whole table, with scores and comparisons.

A `batch` has planned cases (`plan`: rows × variants × repeats) and their states (`case_state`, the
only state). Its `runner` lets an executor make the runs (`local`, or `remote` on a Dask cluster)
within a `budget`, and has the answers scored (`scoring`). `scorers`, `judges` and a person
(`review`) score them; `frames` and `statistics` give tables of the results.
"""
