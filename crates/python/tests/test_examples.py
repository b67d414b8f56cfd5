# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation run."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support import Case

EXAMPLES = os.environ["EXAMPLES"]


class Examples(Case):
    def test_examples_of_the_page_run(self) -> None:
        pages = "".join(Path(page).read_text() for page in EXAMPLES.split())
        examples = re.findall(r"```python\n(.*?)```", pages, re.S)
        self.assertEqual(len(examples), 8)
        for example in examples:
            line = [sys.executable, "-c", example]
            done = subprocess.run(line, cwd=self.directory.name, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip(), example)
