// SPDX-License-Identifier: Apache-2.0
//! Turns copied tables into bitmaps, and judges those with frames past the end of memory: memory
//! was added, they are of a device, or it is no table.

use agewise_policy::table::{PAGES_PER_TABLE, TableBits};

use super::extract::Extractor;
use super::machine::Machine;

/// An extractor that knows where memory ends.
pub(super) struct Digester {
    extractor: Extractor,
    /// Whether this scan may still ask whether memory was added.
    may_ask: bool,
}

impl Digester {
    pub fn new(machine: &Machine) -> Self {
        Digester {
            extractor: Extractor::new(machine.format, machine.encryption_mask),
            may_ask: true,
        }
    }

    /// Begins a scan.
    pub fn begin(&mut self) {
        self.may_ask = true;
    }

    /// Like [`Extractor::extract`]. Memory of devices counts as absent. `memory_end` is asked at
    /// most once per scan, because it takes as long as hundreds of tables.
    pub fn extract(
        &mut self,
        machine: &mut Machine,
        raw: &[u64; PAGES_PER_TABLE],
        out: &mut TableBits,
        memory_end: impl FnOnce() -> Option<u64>,
    ) -> bool {
        if self.extractor.extract(raw, out) {
            return true;
        }
        let format = &mut machine.format;
        let end = std::mem::take(&mut self.may_ask).then(memory_end).flatten();
        if let Some(end) = end.filter(|end| *end > format.address_end) {
            format.address_end = end;
            self.extractor = Extractor::new(*format, machine.encryption_mask);
        }
        let known = raw.map(
            |entry| match format.is_beyond(entry, machine.encryption_mask) {
                true => 0,
                false => entry,
            },
        );
        self.extractor.extract(&known, out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::x86_64::{BITS, USER};
    use super::super::entry::{EntryFormat, PRESENT};
    use super::super::shape::Shape;
    use super::*;

    #[test]
    fn frames_past_the_end_are_of_devices_unless_memory_was_added() {
        let mut machine = Machine {
            direct_map: 0,
            levels: 4,
            format: EntryFormat {
                bits: &BITS,
                address_mask: 0x3fff_ffff_f000,
                address_end: 1 << 36,
                shape: Shape::PAGES_4K,
            },
            encryption_mask: 0,
            huge_zero: None,
        };
        let mut digester = Digester::new(&machine);
        let mut asked = 0;
        let mut extract = |digester: &mut Digester, entries: [u64; 2], end| {
            let (mut raw, mut out) = ([0; PAGES_PER_TABLE], TableBits::default());
            raw[..2].copy_from_slice(&entries);
            let is_table = digester.extract(&mut machine, &raw, &mut out, || {
                asked += 1;
                Some(end)
            });
            is_table.then_some((out.present[0], asked))
        };
        let [near, far] = [1 << 12, 1 << 37].map(|frame| frame | PRESENT | USER);
        let kernel = 1 << 12 | PRESENT;
        assert_eq!(extract(&mut digester, [near, 0], 1 << 36), Some((1, 0)));
        assert_eq!(extract(&mut digester, [near, far], 1 << 36), Some((1, 1)));
        assert_eq!(extract(&mut digester, [far, near], 1 << 38), Some((2, 1)));
        assert_eq!(extract(&mut digester, [far, kernel], 1 << 38), None);
        digester.begin();
        assert_eq!(extract(&mut digester, [far, near], 1 << 38), Some((3, 2)));
        assert_eq!(extract(&mut digester, [far, near], 1 << 38), Some((3, 2)));
    }
}
