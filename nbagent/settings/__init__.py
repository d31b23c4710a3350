"""Settings and run options: the table of options, their types, and the sources of values."""
