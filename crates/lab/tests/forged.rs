// SPDX-License-Identifier: Apache-2.0
//! Results as Parquet whose checksum is forged. A test of its own, since what happens at a panic
//! belongs to the process.

use std::panic::{self, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use agewise_lab::study::description::Description;
use agewise_lab::study::parquet::{CHECKSUM_KEY, bytes};
use agewise_lab::study::result::ResultFile;
use agewise_lab::study::table::{Column, Kind, Table};
use sha2::{Digest, Sha256};

static SAID: AtomicU32 = AtomicU32::new(0);

fn whole() -> Vec<u8> {
    let columns = vec![
        Column::new("policy", Kind::Text),
        Column::optional("n", Kind::Count),
        Column::new("mean", Kind::Number),
    ];
    let rows = vec![vec!["lru".into(), 7.into(), 0.5.into()]; 3];
    let description = Description::Run { cells: Vec::new() };
    bytes(&Table { columns, rows }, &description).unwrap()
}

/// Makes the checksum right, which is in the same place as in the whole file.
fn seal(file: &mut [u8], place: usize) {
    file[place..][..64].fill(b'0');
    let digest = Sha256::digest(&*file);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    file[place..][..64].copy_from_slice(digits.as_bytes());
}

#[test]
fn no_file_makes_the_reader_panic_or_say_so() {
    let whole = whole();
    let path = Path::new("r.parquet");
    ResultFile::parse(path, whole.clone()).unwrap();
    let key = CHECKSUM_KEY.as_bytes();
    let key_at = whole.windows(key.len()).rposition(|of| of == key).unwrap();
    let place = key_at + key.len() + 2;
    panic::set_hook(Box::new(|_| {
        SAID.fetch_add(1, Ordering::Relaxed);
    }));
    let mut panics = 0;
    for at in (4..whole.len()).filter(|at| !(place..place + 64).contains(at)) {
        for bit in 0..8 {
            let mut forged = whole.clone();
            forged[at] ^= 1 << bit;
            let read = ResultFile::parse(path, forged.clone());
            assert!(read.is_err(), "byte {at}, bit {bit}");
            seal(&mut forged, place);
            // It may still be a result, of something else.
            if let Err(error) = ResultFile::parse(path, forged) {
                panics += u32::from(error.to_string().contains("cannot be read as Parquet"));
            }
        }
    }
    assert!(panics > 0);
    assert_eq!(SAID.load(Ordering::Relaxed), 0);
    // Other panics are said as before.
    assert!(catch_unwind(|| panic!("wrong")).is_err());
    assert_eq!(SAID.load(Ordering::Relaxed), 1);
}
