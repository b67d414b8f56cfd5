# SPDX-License-Identifier: Apache-2.0
"""Mistakes are exceptions that say what to do."""

import errno
from collections.abc import Callable

import agewise
from agewise import lab, trace
from support import Case, MyLru


class Errors(Case):
    def test_errors_have_the_words_of_the_command(self) -> None:
        mistakes: list[tuple[Callable[[], object], str]] = [
            (lambda: lab.run("kv", ["mglru:7.3"]), "did you mean `mglru:7.2`"),
            (lambda: lab.run("kw"), "did you mean `kv`"),
            (lambda: lab.run("kv", swap="nmve"), "did you mean `nvme`"),
            (lambda: lab.run("kv", settings={"swapiness": 1}), "did you mean `swappiness`"),
            (lambda: lab.run("kv", options={"acess": "fd"}), "did you mean `access`"),
            (lambda: lab.run("kv", seeds=0), "from 1 to 100000"),
            (lambda: lab.run("kv", seeds=-1), "from 1 to 100000"),
            (lambda: lab.run("kv", seeds=10**12), "from 1 to 100000"),
            (lambda: lab.run("kv", seeds=2**64), "from 1 to 100000"),
            (lambda: lab.reproduce("refault-distance", seeds=-1), "from 1 to 100000"),
            (lambda: lab.reproduce("refault-distance", seeds=2**64), "from 1 to 100000"),
            (lambda: lab.curve(self.trace, options={"access": "mapped"}), "access is for runs"),
            (lambda: lab.run(self.trace, options={"collapse_repeats": "yes"}), "cannot be `yes`"),
            (lambda: lab.curve(self.trace, trace_memory=1), "raise --trace-memory"),
            (lambda: lab.run(self.trace, trace_memory=1), "raise --trace-memory"),
            (lambda: lab.run("kv", ["arc"], proactive="cost"), "the agent cost reclaims beside"),
            (lambda: lab.curve(self.trace, ["lruu"]), "did you mean 'lru'"),
            (lambda: lab.curve(self.trace, []), "no policy given"),
            (lambda: lab.curve(self.trace, points=-1), "from 1 to 4096"),
            (lambda: lab.curve(self.trace, points=5000), "from 1 to 4096"),
            (lambda: lab.curve(self.trace, points=2**64), "from 1 to 4096"),
            (lambda: lab.curve(self.trace, sizes=2**64), "18446744073709551616"),
            (lambda: lab.curve(self.trace, sampling=(0.1, -1)), "at least 2 samples"),
            (lambda: lab.curve(self.trace, sampling=(0.1, 2**64)), "at most 1000"),
            (lambda: lab.curve(self.trace, trace_memory=-1), "trace_memory: 1 byte"),
            (lambda: lab.curve(self.trace, trace_memory=-(2**64)), "trace_memory: 1 byte"),
            (lambda: lab.run("kv", trace_memory=-1), "trace_memory: 1 byte"),
            (lambda: lab.verify_kernel(flush_phases=-1), "flush_phases: from 1 to 10000"),
            (lambda: lab.verify_kernel(flush_phases=2**64), "flush_phases: from 1 to 10000"),
            (lambda: trace.write(self.trace + ".pages", [1], page_shift=2**64), "from 0 to 63"),
            (lambda: trace.write(self.trace + ".pages", [2**64]), "(18446744073709551616, 0) is no page"),
            (lambda: agewise.sweep({"grid": {"a b": "\0"}}, "out"), "unknown key `a b`"),
            (lambda: agewise.sweep({}, "out"), "spec: there is no [[grid]]"),
            (lambda: agewise.sweep({"seeds": 2**64}, "out"), "spec: 18446744073709551616 does not"),
        ]
        for wrong, words in mistakes:
            with self.assertRaises(ValueError) as raised:
                wrong()
            self.assertIn(words, str(raised.exception))
        with self.assertRaises(FileNotFoundError):
            lab.curve("/nonexistent")
        with self.assertRaises(OSError) as full:
            trace.write("/dev/full", range(100_000))
        self.assertEqual(full.exception.errno, errno.ENOSPC)
        with self.assertRaises(NotADirectoryError):
            agewise.sweep({"grid": {"trace": self.trace, "policy": "lru"}}, self.trace + "/out")

    def test_what_is_given_in_place_of_another_says_what_to_do(self) -> None:
        mistakes: list[tuple[Callable[[], object], str]] = [
            (lambda: lab.curve([1, 2, 1]), "not a list: agewise.trace.write"),  # type: ignore[arg-type]
            (lambda: lab.run({"page": [1]}), "not a dict: agewise.trace.write"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, MyLru(5)), "subclasses of agewise"),  # type: ignore[arg-type]
            (lambda: agewise.sweep({"grid": {"policy": int}}, "out"), "subclasses of agewise"),
            (lambda: agewise.sweep({"grid": {"workload": MyLru(5)}}, "out"), "no values such as"),
            (lambda: lab.run("kv", settings="a=b"), "settings is a mapping such as"),  # type: ignore[arg-type]
            (lambda: lab.size(self.trace, options={1: 2}), "options is a mapping such as"),  # type: ignore[dict-item]
            (lambda: trace.open(self.trace, options=[]), "options is a mapping such as"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, sampling=0.1), r"such as \(0.1, 8\), not 0.1"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, trace_memory="1G"), "number of bytes, not '1G'"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, trace_memory=1e9), "number of bytes, not 1000000000.0"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, points=1.5), "points is a whole number, not 1.5"),  # type: ignore[arg-type]
            (lambda: lab.run("kv", seeds="3"), "seeds is a whole number, not '3'"),  # type: ignore[arg-type]
            (lambda: lab.size(self.trace, cgroup=True), r"cgroup is a path such as .*, not True"),  # type: ignore[arg-type]
            (lambda: lab.size(pid=True), "pid is a number such as 1234, not True"),
            (lambda: agewise.watch(pid=7, every=True), "every is a time such as .*, not True"),  # type: ignore[arg-type]
            (lambda: trace.write(self.trace + ".pages", None), "sequences of whole numbers, not None"),
            (lambda: lab.run("kv", proactive=5), "argument 'proactive'"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, progress=7), "progress is a function"),  # type: ignore[arg-type]
            (lambda: agewise.sweep({"grid": 7}, "out"), "grid is a mapping, or a list of them"),
            (lambda: lab.curve(self.trace, sizes=9).write_parquet(1), "not int"),  # type: ignore[arg-type]
        ]
        for wrong, words in mistakes:
            with self.assertRaisesRegex(TypeError, words):
                wrong()
