# SPDX-License-Identifier: Apache-2.0
"""Your own policies: a class that decides which page goes, for `agewise.lab.curve` and `run`."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Optional, Union

from ._native import PolicyError

__all__ = ["Policy", "PolicyError"]


class Policy(ABC):
    """Decides which page leaves a full memory of ``capacity`` pages.

    An instance is created for each size and trace. The lab keeps what is in memory and counts; it
    notifies the policy of accesses and asks it for victims. Pages are numbered from 0 in the order
    in which they are first accessed.

    Instances run on several threads, but one at a time, because of the interpreter's lock.
    """

    #: Name in results; by default the name of the class.
    name: Optional[str] = None

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def on_access(self, pages: list[int]) -> None:
        """Pages that were accessed, in order, and were all in memory: those since the last call of
        any method, at most 4096."""

    @abstractmethod
    def on_fault(self, page: int) -> None:
        """A page that was accessed and was not in memory. It is now."""

    @abstractmethod
    def evict(self, page: int) -> Union[int, Iterable[int]]:
        """Memory is full, and ``page`` is to come in: the page that leaves, or several.

        `PolicyError` is raised, with the number of the access and the page, if a returned page is
        not in memory, or none is returned.
        """


#: A policy for the native part: a name, or a class with its name and the hash of its source.
Described = Union[str, tuple[type[Policy], str, Optional[str]]]


def describe(policies: Iterable[Union[str, type[Policy]]]) -> list[Described]:
    """The policies for the native part. Rows tell them apart by their names."""
    all = [_describe(policy) for policy in policies]
    names = [of if isinstance(of, str) else of[1] for of in all]
    for of in all:
        if not isinstance(of, str) and names.count(of[1]) > 1:
            raise ValueError(
                f"several policies are called {of[1]!r}: give the class another `name`"
            )
    return all


def _describe(policy: Union[str, type[Policy]]) -> Described:
    if isinstance(policy, str):
        return policy
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        wanted = "names and subclasses of agewise.policy.Policy"
        raise TypeError(f"policies are {wanted}, not {policy!r}")
    name = policy.name or policy.__name__
    if not isinstance(name, str):
        raise TypeError(f"the `name` of a policy is a text, not {name!r}")
    try:
        source = inspect.getsource(policy)
    except (OSError, TypeError):
        # A class typed at a prompt or created at run time has no source.
        return policy, name, None
    return policy, name, hashlib.sha256(source.encode()).hexdigest()
