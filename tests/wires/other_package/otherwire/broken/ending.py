"""A module that ends the process that imports it, as a script without a guard does."""

import sys

sys.exit("usage: otherwire FILE")
