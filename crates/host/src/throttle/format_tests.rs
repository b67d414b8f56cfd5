// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

fn squeeze(dir: &Path) -> Undo {
    Undo {
        dir: dir.to_owned(),
        inode: 7,
        kind: Kind::Squeeze,
        steps: vec![Step::Write {
            file: dir.join("memory.high"),
            value: "max".to_owned(),
        }],
    }
}

fn there_and_back(undo: &Undo) -> Contents {
    let contents = Contents {
        undos: vec![undo.clone()],
        unreadable: Vec::new(),
    };
    Contents::decode(&contents.encode())
}

/// The check value of CRC-32 (IEEE): ledgers of other versions of agewise have it.
#[test]
fn the_checksum_is_the_one_that_others_use() {
    assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    assert_eq!(crc32fast::hash(b""), 0);
}

#[test]
fn lines_come_back() {
    let mut both = squeeze(Path::new("/sys/fs/cgroup/a b"));
    both.kind = Kind::Freeze;
    both.steps.push(Step::Leave {
        from: "/f/a".into(),
        to: "/f".into(),
    });
    let name = OsString::from_vec(b"/cg/hog\xff\x07\\x41\t\tleave\t/x\t/y\nsqueeze".to_vec());
    let odd = squeeze(Path::new(&name));
    let more = [
        Undo::mount(Path::new("/run/agewise")),
        Undo::socket(Path::new("/run/a\tb")),
    ];
    for undo in [both, odd].iter().chain(&more) {
        let contents = there_and_back(undo);
        assert_eq!(contents.undos, std::slice::from_ref(undo));
        assert!(contents.unreadable.is_empty());
        assert_eq!(line(undo).lines().count(), 1, "a name adds no line");
    }
}

#[test]
fn the_first_version_is_read() {
    let text = "squeeze\t7\t/cg/a\\\\x41\\tb\twrite\t/cg/a\\\\x41\\tb/memory.high\tmax\n\
        freeze\t9\t/cg/c\twrite\t/f/c/freezer.state\tTHAWED\tleave\t/f/c\t/f\n\
        freeze\t9\t/cg/c\tlaeve\t/f/c\t/f\n";
    let contents = Contents::decode(text.as_bytes());
    assert_eq!(contents.undos[0], squeeze(Path::new("/cg/a\\x41\tb")));
    assert_eq!(contents.undos[1].steps.len(), 2);
    assert_eq!((contents.undos.len(), contents.unreadable.len()), (2, 1));
    // Encoding uses the current version, and keeps what was not understood.
    let again = contents.encode();
    assert!(again.starts_with(b"agewise-ledger 2\n"));
    assert_eq!(Contents::decode(&again), contents);
}

#[test]
fn lines_that_the_first_version_kept_are_read() {
    let newer = Contents {
        undos: vec![squeeze(Path::new("/cg/a"))],
        unreadable: Vec::new(),
    };
    let mut text = b"freeze\t9\t/cg/c\twrite\t/f/c/freezer.state\tTHAWED\n".to_vec();
    text.extend(newer.encode());
    let contents = Contents::decode(&text);
    assert_eq!(contents.undos.len(), 2);
    assert_eq!(contents.undos[1], newer.undos[0]);
    assert!(contents.unreadable.is_empty());
}

#[test]
fn what_means_nothing_is_kept_and_not_carried_out() {
    for bad in [
        "x\t1\t/a",
        "squeeze\tx\t/a",
        "squeeze\t1\t/a\twrite\t/b/memory.high",
        "squeeze\t1",
        "freeze\t1\t/a\twrite\t/etc/passwd\tx",
        "freeze\t1\t/a\twrite\tcgroup.freeze\t0",
        "freeze\t1\t/a\tleave\ta\t/b",
        "mount\t0\t/a\tunmount\t/a\tx",
    ] {
        let contents = Contents::decode(bad.as_bytes());
        assert_eq!(contents.unreadable, [bad.as_bytes()], "{bad:?}");
        // Nor with a correct checksum.
        let summed = format!("{:08x} {bad}", crc32fast::hash(bad.as_bytes()));
        let contents = Contents::decode(summed.as_bytes());
        assert_eq!(contents.unreadable, [summed.as_bytes()], "{bad:?}");
    }
    assert!(Contents::decode(b"").is_empty() && Contents::decode(b"\n\n").is_empty());
    // A later version: readable lines are read, and its first line is kept.
    let later = String::from_utf8(there_and_back(&squeeze(Path::new("/a"))).encode()).unwrap();
    let contents = Contents::decode(later.replace("ledger 2", "ledger 3").as_bytes());
    assert_eq!((contents.undos.len(), contents.unreadable.len()), (1, 1));
    // A line without a checksum is not valid in a file with checksums.
    let bare = format!("{later}squeeze\t7\t/b\twrite\t/b/memory.high\tmax\n");
    assert_eq!(Contents::decode(bare.as_bytes()).unreadable.len(), 1);
    // Nor if the first line is damaged too.
    let bare = "agewise-ledgex 2\n5f3a9c0\nsqueeze\t7\t/b\twrite\t/b/memory.high\tmax\n";
    let contents = Contents::decode(bare.as_bytes());
    assert_eq!((contents.undos.len(), contents.unreadable.len()), (0, 3));
}

fn any_undo() -> impl Strategy<Value = Undo> {
    let path = || {
        proptest::collection::vec(1..=u8::MAX, 1..12)
            .prop_map(|bytes| Path::new("/cg").join(OsString::from_vec([b"a", &*bytes].concat())))
    };
    (path(), path(), any::<u64>(), 0..4u8).prop_map(|(dir, other, inode, which)| {
        let write = |name: &str| Step::Write {
            file: dir.join(name),
            value: "-1".to_owned(),
        };
        let leave = Step::Leave {
            from: dir.clone(),
            to: other.clone(),
        };
        let (kind, steps) = match which {
            0 => (Kind::Squeeze, vec![write("memory.high")]),
            1 => (Kind::Freeze, vec![write("freezer.state"), leave]),
            2 => return Undo::mount(&dir),
            _ => return Undo::socket(&dir),
        };
        Undo {
            dir: dir.clone(),
            inode,
            kind,
            steps,
        }
    })
}

/// Damage to a file: cut off, or a byte changed, lost or added.
#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Change(usize, u8),
    Lose(usize),
    Add(usize, u8),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let at = || any::<proptest::sample::Index>().prop_map(|index| index.index(1 << 12));
    prop_oneof![
        at().prop_map(Damage::Cut),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Change(at, byte)),
        (at(), Just(b'\n')).prop_map(|(at, byte)| Damage::Change(at, byte)),
        at().prop_map(Damage::Lose),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Add(at, byte)),
    ]
}

fn hurt(bytes: &mut Vec<u8>, damage: &Damage) {
    let length = bytes.len().max(1);
    match *damage {
        Damage::Cut(at) => bytes.truncate(at % length),
        Damage::Change(at, byte) => {
            if let Some(hit) = bytes.get_mut(at % length) {
                *hit = byte;
            }
        }
        Damage::Lose(at) if !bytes.is_empty() => {
            bytes.remove(at % length);
        }
        Damage::Lose(_) => {}
        Damage::Add(at, byte) => bytes.insert(at % length.min(bytes.len() + 1), byte),
    }
}

proptest! {
    #[test]
    fn no_damage_loses_a_line_that_is_whole(
        undos in proptest::collection::vec(any_undo(), 0..6),
        damages in proptest::collection::vec(any_damage(), 0..5),
    ) {
        let contents = Contents { undos, unreadable: Vec::new() };
        let mut bytes = contents.encode();
        let before: Vec<Vec<u8>> =
            bytes.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::to_vec).collect();
        for damage in &damages {
            hurt(&mut bytes, damage);
        }
        let after: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let decoded = Contents::decode(&bytes);
        for (line, undo) in before.iter().zip(&contents.undos) {
            let is_whole = after.contains(&line.as_slice());
            prop_assert!(!is_whole || decoded.undos.contains(undo));
        }
        // Nothing is invented: every entry read was written, and every other line is kept.
        for undo in &decoded.undos {
            prop_assert!(contents.undos.contains(undo));
        }
        let lines = after.iter().filter(|line| !line.is_empty() && **line != HEADER).count();
        prop_assert_eq!(decoded.undos.len() + decoded.unreadable.len(), lines);
        prop_assert_eq!(Contents::decode(&decoded.encode()), decoded);
    }

    #[test]
    fn any_bytes_are_read_or_kept(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let contents = Contents::decode(&bytes);
        prop_assert_eq!(Contents::decode(&contents.encode()), contents);
    }
}
