# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the installed package, or those that are named (`test_sweeps.Sweeps`).

Run by scripts/test-wheel, which names the command in AGEWISE and the pages in EXAMPLES.
"""

import os
import signal
import sys
import unittest

# A shell that runs this in the background lets it ignore Ctrl-C, and the tests of that would wait
# for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
given = sys.argv[1:]
if all(one.startswith("-") for one in given):
    here = os.path.dirname(os.path.abspath(__file__))
    given = ["discover", "-s", here, *given]
unittest.main(module=None, argv=[sys.argv[0], *given])
