# SPDX-License-Identifier: Apache-2.0
"""Traces, written and read."""

import os
import unittest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from agewise import lab, trace
from support import Case


class Traces(Case):
    def test_traces_are_written_as_they_should_be(self) -> None:
        path = os.path.join(self.directory.name, "written.pages")
        pages = [int(line) for line in Path(self.trace).read_text().split()]
        self.assertEqual(trace.write(path, pages, time_ns=range(len(pages))), len(pages))
        ours = [(row["size_pages"], row["misses"]) for row in lab.curve(path, ["lru"]).rows()]
        of_text = lab.curve(self.trace, ["lru"]).rows()
        plain = [(row["size_pages"], row["misses"]) for row in of_text]
        self.assertEqual(ours, plain)
        for wrong in ([1, -1], [1, 1.5], [1, float("nan")], [1, None], [1, 2**64]):
            with self.assertRaisesRegex(ValueError, "access 1: .* is no page"):
                trace.write(path, wrong)
        with self.assertRaisesRegex(ValueError, "access 1: .* is no page and time"):
            trace.write(path, [1, 2], time_ns=[3])
        with self.assertRaisesRegex(ValueError, "more times than pages"):
            trace.write(path, [1, 2], time_ns=[3, 3, 3])
        with self.assertRaisesRegex(ValueError, "access 1: its time 2 is before 3"):
            trace.write(path, [1, 2], time_ns=[3, 2])
        # What was there stays until another is whole.
        self.assertEqual(len(lab.curve(path, ["lru"], points=3)), 3)
        self.assertEqual(list(Path(path).parent.glob("*.part")), [])
        with self.assertRaisesRegex(ValueError, "format is"):
            trace.write(path, [], format="oracleGeneral")

    def test_names_of_traces_say_their_format(self) -> None:
        named = os.path.join(self.directory.name, "named")
        trace.write(named + ".csv", [7])
        self.assertTrue(Path(named + ".csv").read_text().startswith("time_ns,page"))
        trace.write(named + ".lirs", [7])
        self.assertEqual(Path(named + ".lirs").read_text(), "7\n")
        trace.write(named, [7])
        trace.write(named + ".pages", [7])
        self.assertEqual(Path(named).read_bytes(), Path(named + ".pages").read_bytes())
        with self.assertRaisesRegex(ValueError, "of the format csv, but format says page"):
            trace.write(named + ".csv", [7], format="page")

    @unittest.skipUnless(find_spec("polars"), "polars is not installed")
    def test_frames_are_written_as_they_should_be(self) -> None:
        import polars

        path, plain = (os.path.join(self.directory.name, name) for name in ("f.pages", "p.pages"))
        pages = [n * n % 1009 for n in range(5000)]
        frame = polars.DataFrame({"page": pages, "time_ns": range(5000)})
        self.assertEqual(trace.write(path, frame), 5000)
        trace.write(plain, pages, time_ns=range(5000))
        self.assertEqual(Path(path).read_bytes(), Path(plain).read_bytes())
        for same in (frame.lazy(), {"page": pages, "time_ns": range(5000)}):
            self.assertEqual(trace.write(path, same), 5000)
            self.assertEqual(Path(path).read_bytes(), Path(plain).read_bytes())
        with self.assertRaisesRegex(ValueError, r"no column 'page'; it has \['pages'\]"):
            trace.write(path, polars.DataFrame({"pages": [1]}))
        for wrong in ([1, -1], [1.0, float("nan")], [1.0, 0.5], [1.0, 2.0**54], [1, None]):
            with self.assertRaisesRegex(ValueError, "access 1: .* is no page and time"):
                trace.write(path, polars.Series(wrong))
        trace.write(path, [float(page) for page in pages], time_ns=range(5000))
        self.assertEqual(Path(path).read_bytes(), Path(plain).read_bytes())
        # The messages with numpy and without.
        with self.assertRaisesRegex(ValueError, r"2 pages, but 1 times|access 1: \(2, None\)"):
            trace.write(path, polars.Series([1, 2]), time_ns=polars.Series([1]))
        with self.assertRaisesRegex(ValueError, "access 1: its time 2 is before 3"):
            trace.write(path, polars.Series([1, 2]), time_ns=polars.Series([3, 2]))

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_frames_saved_as_csv_are_traces(self) -> None:
        csv = import_module("pyarrow.csv")
        kept, saved = (os.path.join(self.directory.name, name) for name in ("k.pages", "k.csv"))
        trace.write(kept, [3, 1, 3], time_ns=[1, 2, 3])
        [batch] = trace.open(kept)
        plain = [column.cast("string") if i > 2 else column for i, column in enumerate(batch)]
        table = import_module("pyarrow").table(plain, names=batch.schema.names)
        csv.write_csv(table, saved)
        [again] = trace.open(saved)
        self.assertEqual(again.to_pylist(), batch.to_pylist())

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_traces_are_read_in_batches(self) -> None:
        path = os.path.join(self.directory.name, "t.csv")
        Path(path).write_text("time_ns,page,kind,process,class\n5,7,w,3,anon\n6,8,r,3,file\n")
        [batch] = trace.open(path)
        first, second = batch.to_pylist()
        expected = {"page": 7, "time_ns": 5, "process": 3, "kind": "write", "class": "anon"}
        self.assertEqual(first, expected)
        self.assertEqual((second["page"], second["kind"], second["class"]), (8, "read", "file"))
        self.assertEqual(sum(len(batch) for batch in trace.open(self.trace)), 20000)
        with self.assertRaises(FileNotFoundError):
            trace.open("/nonexistent")

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_the_page_size_is_kept(self) -> None:
        pyarrow = import_module("pyarrow")
        large, again, small = (os.path.join(self.directory.name, f"{n}.pages") for n in range(3))
        trace.write(large, [1, 2, 1], page_shift=16)
        [batch] = trace.open(large)
        self.assertEqual(batch.schema.metadata, {b"page_shift": b"16"})
        with self.assertWarnsRegex(UserWarning, "not written: the columns process, kind, class"):
            trace.write(again, pyarrow.Table.from_batches([batch]))
        self.assertEqual(Path(again).read_bytes(), Path(large).read_bytes())
        trace.write(small, [1, 2, 1])
        [batch] = trace.open(small)
        self.assertEqual(batch.schema.metadata, {b"page_shift": b"12"})
        with self.assertRaisesRegex(ValueError, "page shift 12 was given, but its header says 16"):
            trace.open(large, options={"page_shift": 12})
        for wrong in (-1, 64):
            with self.assertRaisesRegex(ValueError, "from 0 to 63"):
                trace.write(small, [1], page_shift=wrong)

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_a_null_has_its_position(self) -> None:
        pyarrow = import_module("pyarrow")
        path = os.path.join(self.directory.name, "null.pages")
        with self.assertRaisesRegex(ValueError, "access 1: .* is no page"):
            trace.write(path, pyarrow.array([1, None]))

    @unittest.skipUnless(find_spec("numpy"), "numpy is not installed")
    def test_what_is_masked_is_no_page(self) -> None:
        numpy = import_module("numpy")
        path = os.path.join(self.directory.name, "masked.pages")
        pages = numpy.ma.array([1, 2, 3], mask=[False, True, False])
        with self.assertRaisesRegex(ValueError, "access 1: .*None.* is no page"):
            trace.write(path, pages)
        self.assertEqual(trace.write(path, numpy.ma.array([1, 2, 3])), 3)

    @unittest.skipUnless(find_spec("numpy"), "numpy is not installed")
    def test_times_of_numpy_are_nanoseconds(self) -> None:
        numpy = import_module("numpy")
        path = os.path.join(self.directory.name, "times.csv")
        times = numpy.array([5, 7], dtype="timedelta64[ns]")
        self.assertEqual(trace.write(path, [1, 2], time_ns=times), 2)
        with open(path, encoding="utf-8") as file:
            rows = file.read().splitlines()[1:]
        self.assertEqual([row.split(",")[0] for row in rows], ["5", "7"])
        # numpy makes bare numbers of both of the last two.
        for unit in ("us", "Y", "ps"):
            times = numpy.array([5, 7], dtype=f"timedelta64[{unit}]")
            with self.assertRaisesRegex(ValueError, "nanoseconds"):
                trace.write(path, [1, 2], time_ns=times)
