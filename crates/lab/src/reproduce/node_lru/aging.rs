// SPDX-License-Identifier: Apache-2.0
//! Whether a page stays equally long whatever zone it came from. The document does not measure
//! this, but it is the stated purpose of the fair policy, which lists per node make unnecessary.

use super::outcome::compare;
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;

pub(super) fn benchmark() -> Benchmark {
    Benchmark {
        name: "aging".into(),
        summary: "files of 1.25 times the memory read in a loop: how long pages of each zone stay"
            .into(),
        figures: vec![
            Figure::lower("residency spread", "% of mean", Expectation::Own).by_difference(),
            Figure::lower("out of order", "%", Expectation::Own).by_difference(),
            Figure::lower("elapsed", "s", Expectation::Own),
        ],
        measure: Box::new(|case| {
            let workload = library::find("aging")?;
            compare(case, workload, |outcome| {
                let [spread, inverted] = outcome.aging();
                vec![spread, inverted, outcome.elapsed_s]
            })
        }),
    }
}
