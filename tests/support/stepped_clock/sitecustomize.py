"""Lets a test set the wall clock of the processes of a broker, while they run.

Python imports this module at its start if its directory is on the module path. The file that STEPPED_CLOCK names has a
signed number of 64 bits: how many nanoseconds the clock is ahead. All processes map it before they give up rights.
"""

import mmap
import os
import time

if "STEPPED_CLOCK" in os.environ:
    with open(os.environ["STEPPED_CLOCK"], "r+b") as file:
        ahead = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() + ahead[0]
