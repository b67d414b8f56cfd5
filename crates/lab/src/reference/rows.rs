// SPDX-License-Identifier: Apache-2.0
//! Reading a reference, with rows grouped into cells.

use std::collections::BTreeMap;
use std::io::Read;

use super::cell::{Cell, Run};
use super::raw::{RawRow, ReferenceError, misses_together};

/// The reference included in agewise: Linux 6.12 and 7.2, both LRUs, eight traces under a limit of
/// 32 MiB, in a guest. `docs/inside/kernel-reference.md` says how it was measured.
pub const COMMITTED: &str = include_str!("../../reference/kernels.csv");

/// More cells of the same kernels, with three to five runs each: swappiness, bits of
/// `lru_gen/enabled`, three cgroups below one limit, protections, writes including files; no limit,
/// where kswapd reclaims; `min_ttl_ms`, where programs are killed; two CPUs, two nodes.
pub const EXTENDED: &str = include_str!("../../reference/extended.csv");

/// Columns of a reference, in order. Without `swappiness` it was 60; without the columns of members
/// the program was alone and unprotected; without `writes` it read; without the columns after `err`
/// there were one CPU, `min_ttl_ms` 0, no huge pages, the kernel's `watermark_boost_factor`, and
/// memory was local. `free_pages`, by node and zone before the first touch, are given if
/// `limit_bytes` is 0 (no limit). A row with `oom_kill` 1 has the phase in which the program was
/// killed, and no counts.
pub const COLUMNS: &str = "kver,nomadv,rep,lru_gen_enabled,limit_bytes,swappiness,members,member,\
                           min_bytes,low_bytes,writes,phase,pattern,npages,hot,theta,seed,touches,\
                           misses,elapsed,pgscan,tracehash,err,cpus,min_ttl_ms,thp,free_pages,\
                           pgsteal,pgscan_kswapd,pgsteal_kswapd,refault_anon,refault_file,\
                           allocstall,oom_kill,watermark_boost_factor,\
                           interleave";

/// Reads a reference into cells, in the order in which they appear.
///
/// Rows of one cell differ by `kver` and `rep`, so that control runs with other boot options
/// count as further runs of the same cell.
///
/// # Errors
/// [`ReferenceError`] names the line and the column.
pub fn read(input: impl Read) -> Result<Vec<Cell>, ReferenceError> {
    let mut reader = csv::Reader::from_reader(input);
    let mut cells: Vec<Cell> = Vec::new();
    let mut runs: BTreeMap<(usize, String, String), usize> = BTreeMap::new();
    let mut main_touches: BTreeMap<usize, u64> = BTreeMap::new();
    let rows: Vec<RawRow> = reader.deserialize().collect::<Result<_, _>>()?;
    let together = misses_together(&rows);
    for (number, row) in rows.iter().enumerate() {
        let (kernel, lru_gen, phase, trace_hash) = row.check(number as u64 + 2)?;
        let cell = row.cell(kernel, lru_gen, trace_hash);
        let index = match cells.iter().position(|other| is_same(other, &cell)) {
            Some(index) => index,
            None => {
                cells.push(cell);
                cells.len() - 1
            }
        };
        let touches = row.main_touches(phase);
        if let Some(touches) = touches {
            let known = main_touches.entry(index).or_insert(touches);
            *known = (*known).max(touches);
        }
        let cell = &mut cells[index];
        cell.trace_hash = cell.trace_hash.or(trace_hash);
        let run = *runs
            .entry((index, row.kver.clone(), row.rep.clone()))
            .or_insert_with(|| {
                cell.runs.push(Run::new());
                cell.runs.len() - 1
            });
        if row.oom_kill.unwrap_or(0) == 0 {
            let all_misses = together.get(&row.turn()).copied();
            cell.runs[run].insert(phase, row.measured(all_misses.unwrap_or(row.misses)));
        }
    }
    if cells.is_empty() {
        return Err(ReferenceError::Empty);
    }
    for (index, touches) in main_touches {
        cells[index].trace.touches = touches;
    }
    Ok(cells)
}

/// Cells differ by everything except the number of touches, which the hash covers. A killed run
/// shows neither and belongs to the first matching cell.
fn is_same(one: &Cell, other: &Cell) -> bool {
    let hashes_agree = match (one.trace_hash, other.trace_hash) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    one.kernel == other.kernel
        && one.lru_gen == other.lru_gen
        && one.limit_bytes == other.limit_bytes
        && one.guest.is_like(&other.guest)
        && one.swappiness == other.swappiness
        && one.members == other.members
        && one.nomadv == other.nomadv
        && one.writes == other.writes
        && hashes_agree
        && one.trace.pattern == other.trace.pattern
        && one.trace.pages == other.trace.pages
        && one.trace.hot == other.trace.hot
        && one.trace.theta.total_cmp(&other.trace.theta).is_eq()
        && one.trace.seed == other.trace.seed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::cell::{Guest, Members, Phase};
    use super::*;

    const HEADER: &str = "kver,nomadv,rep,lru_gen_enabled,limit_bytes,phase,pattern,npages,hot,\
                          theta,seed,touches,misses,elapsed,pgscan,tracehash,err,curve\n";

    fn row(rep: u32, phase: &str, touches: u64, misses: u64) -> String {
        format!(
            "7.2.12+deb13,0,{rep},0x0007,33554432,{phase},anon-zipf,16384,0,0.80,12345,{touches},\
             {misses},1.5,99,3ce98eb2de72e497,0,1;2;3\n"
        )
    }

    #[test]
    fn rows_become_cells_and_runs() {
        let text = [
            HEADER,
            &row(1, "populate", 16384, 2),
            &row(1, "warm", 100_000, 5),
            &row(1, "main", 400_000, 7),
            &row(2, "warm", 100_000, 6),
        ]
        .concat();
        let cells = read(text.as_bytes()).unwrap();
        assert_eq!(cells.len(), 1);
        let cell = &cells[0];
        assert_eq!((cell.kernel.as_str(), cell.lru_gen), ("7.2", 7));
        assert_eq!(cell.trace.touches, 400_000);
        assert_eq!(cell.values(Phase::Warm, |m| m.misses), [5, 6]);
        assert_eq!(cell.values(Phase::Main, |m| m.misses), [7]);
    }

    #[test]
    fn faults_are_told_with_their_line() {
        let bad = HEADER.to_owned() + &row(1, "main", 4, 1) + &row(1, "coffee", 4, 1);
        let error = read(bad.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("coffee"),
            "{error}"
        );
        assert!(matches!(
            read(HEADER.as_bytes()),
            Err(ReferenceError::Empty)
        ));
        assert!(matches!(
            read(&b"a,b\n1,2\n"[..]),
            Err(ReferenceError::Csv(_))
        ));
        let cut = HEADER.to_owned() + "7.2.12,0,1,0x0007,3355";
        assert!(matches!(read(cut.as_bytes()), Err(ReferenceError::Csv(_))));
    }

    /// A reference in the current format: one row with all columns.
    fn today(limits: &str) -> String {
        format!(
            "{COLUMNS}\n6.12.1,1,1,0x0007,67108864,{limits},main,anon-zipf,8192,0,0.99,12346,40000,\
             2775,1.0,3930,3a9e1aeaff0f4c56,0,1,0,0,,3930,0,0,0,0,0,0,0,1\n"
        )
    }

    #[test]
    fn members_and_swappiness_make_cells_of_their_own() {
        let cells = read(today("100,3,1,25165824,0,1").as_bytes()).unwrap();
        let wanted = Members {
            count: 3,
            this: 1,
            min_bytes: 24 << 20,
            low_bytes: 0,
        };
        assert_eq!((cells[0].swappiness, cells[0].members), (100, wanted));
        assert!(cells[0].writes);
        let old = read((HEADER.to_owned() + &row(1, "main", 4, 1)).as_bytes()).unwrap();
        assert_eq!((old[0].swappiness, old[0].members), (60, Members::ALONE));
        let one = today("60,3,0,0,0,0");
        let first = one.lines().last().unwrap();
        let other = first.replace("60,3,0,", "60,3,1,").replace("2775", "1225");
        let cells = read((one.clone() + &other + "\n").as_bytes()).unwrap();
        // The third member is assumed to have missed 2000 times.
        let all = |cell: &Cell| cell.values(Phase::Main, |m| m.all_misses);
        assert_eq!((all(&cells[0]), all(&cells[1])), (vec![6000], vec![6000]));
        for (limits, column) in [
            ("201,1,0,0,0,0", "swappiness"),
            ("60,0,0,0,0,0", "members"),
            ("60,17,0,0,0,0", "members"),
            ("60,3,3,0,0,0", "member"),
        ] {
            let error = read(today(limits).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!(": {column} `")), "{error}");
        }
    }

    #[test]
    fn without_a_limit_the_guest_is_one_and_a_killed_run_has_no_counts() {
        let limited = today("60,1,0,0,0,0");
        let global = limited
            .replace(",67108864,", ",0,")
            .replace(",1,0,0,,3930,", ",2,1000,1,3800/26000/0/0,3930,");
        let cells = read(global.as_bytes()).unwrap();
        let guest = Guest {
            cpus: 2,
            min_ttl_ms: 1000,
            thp: true,
            watermark_boost_factor: 0,
            interleave: 1,
            free_pages: Some(vec![[3800, 26000, 0, 0]]),
        };
        assert_eq!((cells[0].limit_bytes, &cells[0].guest), (0, &guest));
        // Free pages vary from run to run.
        let row = global.lines().last().unwrap();
        let other = row.replace(",1,1,0x", ",1,2,0x").replace("26000", "26001");
        let killed = other.strip_suffix("0,0,1").unwrap().to_owned() + "1,0,1\n";
        let cells = read((global.clone() + &killed).as_bytes()).unwrap();
        assert_eq!((cells.len(), cells[0].runs.len()), (1, 2));
        assert!(cells[0].runs[1].is_empty());
        let two = global.replace("3800/26000/0/0", "3800/13000/0/0;0/13000/0/0");
        let cells = read((two + row + "\n").as_bytes()).unwrap();
        let nodes: Vec<u32> = cells.iter().map(|cell| cell.guest.nodes()).collect();
        assert_eq!(nodes, [2, 1]);
        // A guest of another size makes another cell, even in a run of the same number.
        let smaller = row.replace("26000", "20000").replace(",2775,", ",4000,");
        let cells = read((global.clone() + &smaller + "\n").as_bytes()).unwrap();
        let misses = |cell: &Cell| cell.values(Phase::Main, |m| m.all_misses);
        assert_eq!(
            cells.iter().map(misses).collect::<Vec<_>>(),
            [[2775], [4000]]
        );
        let three = global.strip_suffix("1\n").unwrap().to_owned() + "3\n";
        let error = read(three.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("nor the number of nodes"), "{error}");
        for zones in [
            "",
            "3800/26000/0",
            "1/2/3/x",
            "0/4294967295/1/0",
            "0/1/0/0",
            "1/2/3/4;5",
        ] {
            let bad = global.replace("3800/26000/0/0", zones);
            let error = read(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("free_pages"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "[0-9a-zA-Z,.;\n\"-]{0,300}") {
            let _ = read(text.as_bytes());
            let _ = read((HEADER.to_owned() + &text).as_bytes());
        }

        #[test]
        fn damaged_rows_do_not_panic(at in 0usize..400, byte in any::<u8>()) {
            let mut text = (HEADER.to_owned() + &row(1, "main", 4, 1)).into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let _ = read(&text[..]);
        }
    }
}
