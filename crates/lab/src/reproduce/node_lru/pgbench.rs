// SPDX-License-Identifier: Apache-2.0
//! pgbench, read-only, on a database larger than memory.

use super::outcome::compare;
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;

/// Clients, and transactions per second before and after.
const CLIENTS: [(u32, f64, f64); 6] = [
    (1, 191.00, 193.67),
    (5, 338.59, 336.99),
    (12, 374.03, 386.15),
    (21, 372.24, 372.02),
    (30, 383.98, 370.69),
    (32, 431.01, 438.47),
];

/// Touches of all clients together; a transaction has four.
const TOUCHES: u64 = 60_000;

/// Index of the client's kind of process.
const CLIENT: usize = 1;

pub(super) fn benchmarks() -> Vec<Benchmark> {
    CLIENTS
        .iter()
        .map(|&(clients, before, after)| Benchmark {
            name: format!("pgbench/{clients}"),
            summary: "clients that go down an index and read a random page of a table".into(),
            figures: vec![
                Figure::higher("transactions", "1/s", Expectation::NO_CHANGE)
                    .document(before, after)
                    .within_noise(),
                Figure::lower("kswapd pages scanned", "pages", Expectation::Own),
            ],
            measure: Box::new(move |case| {
                let mut workload = library::find("pgbench")?;
                let touches = TOUCHES / u64::from(clients);
                workload.process[CLIENT].count = clients;
                workload.process[CLIENT].phase[0].touches = touches;
                compare(case, workload, |outcome| {
                    let transactions = outcome.rate(CLIENT, 0, touches as f64 / 4.0);
                    vec![transactions, outcome.vm().kswapd_scanned]
                })
            }),
        })
        .collect()
}
