// SPDX-License-Identifier: Apache-2.0
//! Parses `/sys/kernel/debug/lru_gen` of all kernels so far: the cgroup id is 16 bits wide and
//! padded up to 6.13, 64 bits wide since; counts may have a mark.

use std::path::Path;

use crate::error::FileError;

/// One generation of one lruvec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its sequence number.
    pub seq: u64,
    /// Time since the generation was created, in ms.
    pub age_ms: u64,
    pub anon_pages: u64,
    pub file_pages: u64,
}

/// The generations of one cgroup on one node, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lruvec {
    /// The NUMA node.
    pub node: u32,
    pub generations: Vec<Generation>,
}

impl Lruvec {
    /// The youngest generation's number; `None` without generations.
    #[must_use]
    pub fn max_seq(&self) -> Option<u64> {
        self.generations.last().map(|generation| generation.seq)
    }
}

/// One memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memcg {
    /// The id used in commands.
    pub id: u64,
    /// Path below the root of the hierarchy; `/` for the root.
    pub path: String,
    /// One lruvec per node with memory.
    pub lruvecs: Vec<Lruvec>,
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// In tree order, as the kernel prints them.
    pub memcgs: Vec<Memcg>,
}

impl Table {
    /// The cgroup at a path below the root of the hierarchy.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Memcg> {
        self.memcgs.iter().find(|memcg| memcg.path == path)
    }
}

/// Parses the text of the file. `path` appears in errors.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Table, FileError> {
    let mut table = Table::default();
    for line in text.lines() {
        let wrong = |expected| FileError::format(path, expected, line);
        if let Some(rest) = line.strip_prefix("memcg") {
            let memcg = parse_memcg(rest).ok_or_else(|| wrong("'memcg ID PATH'"))?;
            table.memcgs.push(memcg);
            continue;
        }
        let memcg = table
            .memcgs
            .last_mut()
            .ok_or_else(|| wrong("'memcg ID PATH' first"))?;
        if let Some(node) = line.trim_start().strip_prefix("node") {
            let node = node.trim().parse().map_err(|_| wrong("'node NUMBER'"))?;
            memcg.lruvecs.push(Lruvec {
                node,
                generations: Vec::new(),
            });
            continue;
        }
        let lruvec = memcg
            .lruvecs
            .last_mut()
            .ok_or_else(|| wrong("'node NUMBER' first"))?;
        let generation = parse_generation(line).ok_or_else(|| wrong("'SEQ AGE ANON FILE'"))?;
        let follows = lruvec
            .max_seq()
            .is_none_or(|last| last.checked_add(1) == Some(generation.seq));
        if !follows {
            return Err(wrong("generations in ascending order"));
        }
        lruvec.generations.push(generation);
    }
    Ok(table)
}

fn parse_memcg(rest: &str) -> Option<Memcg> {
    let (id, path) = rest.trim_start().split_once(' ')?;
    Some(Memcg {
        id: id.parse().ok()?,
        path: path.to_owned(),
        lruvecs: Vec::new(),
    })
}

fn parse_generation(line: &str) -> Option<Generation> {
    let mut fields = line.split_ascii_whitespace();
    let mut next = || -> Option<u64> {
        // `lru_gen_full` marks counts of retired generations with an x.
        let field = fields.next()?.trim_end_matches('x');
        // v6 printed `-0` there.
        field.strip_prefix('-').unwrap_or(field).parse().ok()
    };
    let generation = Generation {
        seq: next()?,
        age_ms: next()?,
        anon_pages: next()?,
        file_pages: next()?,
    };
    fields.next().is_none().then_some(generation)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: &str = "\
memcg     1 /
 node     0
          0       8008          0           0 
          1       8008          0           4 
memcg     2 /a b
 node     0
          7       3636          0        8449 
 node     1
          3         36         12           0 
";

    fn read(text: &str) -> Result<Table, FileError> {
        parse(Path::new("lru_gen"), text)
    }

    #[test]
    fn both_formats_read_alike() {
        let old = read(OLD).unwrap();
        let new = read(&OLD.replace("memcg     ", "memcg ")).unwrap();
        assert_eq!(old, new);
        let memcg = old.at("/a b").unwrap();
        assert_eq!((memcg.id, memcg.lruvecs.len()), (2, 2));
        assert_eq!(memcg.lruvecs[0].max_seq(), Some(7));
        let generation = Generation {
            seq: 7,
            age_ms: 3636,
            anon_pages: 0,
            file_pages: 8449,
        };
        assert_eq!(memcg.lruvecs[0].generations, [generation]);
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_line() {
        for (text, found) in [
            ("node 0\n", "node 0"),
            ("memcg x /\n", "memcg x /"),
            ("memcg 1 /\n 0 1 2 3\n", "0 1 2 3"),
            ("memcg 1 /\n node 0\n 0 1 2\n", "0 1 2"),
            ("memcg 1 /\n node 0\n 0 1 2 3\n 2 1 2 3\n", "2 1 2 3"),
            ("memcg 1 /\n node 0\n 0 1 2 99999999999999999999\n", "9999"),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(found), "{message}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(memcg|node| |[0-9]{1,20}|/|x|-|\n){0,60}") {
            let _ = read(&text);
        }
    }
}
