# SPDX-License-Identifier: Apache-2.0
"""Your own policies: a class that decides which page goes, for `agewise.lab.curve` and `run`, and
`agewise.sweep`."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
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

    #: Results contain a hash of the source of the class and of those it inherits from, and of their
    #: attributes that are numbers or texts, such as this one: to be changed with anything else that
    #: the class uses.
    version: Union[str, int, None] = None

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


#: A class for the native part: with its name, and the hash of its source.
Class = tuple[type[Policy], str, Optional[str]]
Described = Union[str, Class]


def describe(policies: Iterable[Union[str, type[Policy]]]) -> list[Described]:
    """The policies for the native part. Rows tell them apart by their names."""
    all = [of if isinstance(of, str) else _describe(of) for of in policies]
    names = [of if isinstance(of, str) else of[1] for of in all]
    for of in all:
        if not isinstance(of, str) and names.count(of[1]) > 1:
            raise ValueError(
                f"several policies are called {of[1]!r}: give the class another `name`"
            )
    return all


def _describe(policy: type[Policy]) -> Class:
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        wanted = "names and subclasses of agewise.policy.Policy"
        raise TypeError(f"policies are {wanted}, not {policy!r}")
    return policy, name_of(policy), _sha256(policy)


def name_of(policy: type[Policy]) -> str:
    """The name of a class in results."""
    name = policy.name or policy.__name__
    if not isinstance(name, str):
        raise TypeError(f"the `name` of a policy is a text, not {name!r}")
    return name


def current(of: Class) -> Class:
    """A class that came from another process, with the hash of its source here: one that was sent
    by its name and imported may be another than was meant."""
    here: object = sys.modules.get(of[0].__module__)
    for part in of[0].__qualname__.split("."):
        here = getattr(here, part, None)
    return _describe(of[0]) if here is of[0] else of


def _sha256(policy: type[Policy]) -> Optional[str]:
    """Of the sources of a class and of those it inherits from, and of their attributes, which can
    be set at run time; None for methods without source, typed at a prompt, and no version."""
    parts = []
    for one in policy.__mro__[: policy.__mro__.index(Policy)]:
        attributes = {name: of for name, of in vars(one).items() if not name.startswith("__")}
        plain = {name: of for name, of in attributes.items() if _is_plain(of)}
        # Of those alone all is known, and `inspect` does not look for classes without methods.
        if attributes.keys() - plain.keys() - {"_abc_impl"}:
            source = _source(one)
            if source is None and policy.version is None:
                return None
            parts.append(source or "")
        parts += [f"{name} = {of!r}\n" for name, of in sorted(plain.items())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _is_plain(of: object) -> bool:
    """Whether what it prints is its value."""
    if isinstance(of, (list, tuple)):
        return all(map(_is_plain, of))
    return of is None or isinstance(of, (bool, int, float, str, bytes))


def _source(policy: type) -> Optional[str]:
    # By its methods first: a class of a notebook is in no file, and of several classes of one name
    # in a file `inspect` returns any.
    for method in filter(inspect.isfunction, vars(policy).values()):
        try:
            lines, at = inspect.findsource(method)
            tree = ast.parse("".join(lines))
        except (OSError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == policy.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first <= at + 1 <= (node.end_lineno or 0):
                    return "".join(lines[first - 1 : node.end_lineno])
    try:
        return inspect.getsource(policy)
    except (OSError, TypeError):
        return None
