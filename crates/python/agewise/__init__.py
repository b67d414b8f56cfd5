# SPDX-License-Identifier: Apache-2.0
"""Reclaim policies on simulated memory, side by side: the lab of agewise for Python."""

from . import lab
from ._native import __version__

__all__ = ["__version__", "lab"]
