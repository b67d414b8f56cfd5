# SPDX-License-Identifier: Apache-2.0
"""Reclaim policies on simulated memory, side by side: the lab of agewise for Python."""

from . import lab, policy, trace
from ._command import CommandError, report, watch
from ._native import __version__
from ._sweep import Sweep, sweep

__all__ = [
    "CommandError",
    "Sweep",
    "__version__",
    "lab",
    "policy",
    "report",
    "sweep",
    "trace",
    "watch",
]
