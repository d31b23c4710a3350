"""All that is kept: the store of runs, and the frames that are read from it.

Nothing is imported here; sqlite3 lives in `store/`, pandas in `frames`.
"""
