// SPDX-License-Identifier: Apache-2.0
//! Text and errors of the debugfs and sysfs files of the two kernels.

use agewise_kernel::ids::MemcgId;
use agewise_kernel::mglru::{self, Command, MemcgNames, Profile, Settings, sysfs};
use proptest::prelude::*;

use crate::machine::Machine;
use crate::trace::{Pattern, Trace, Workload};

/// The root has id 1; the workload's cgroup has its own id.
pub struct Names(u64);

impl MemcgNames for Names {
    fn id(&self, memcg: MemcgId) -> u64 {
        if memcg == MemcgId::ROOT { 1 } else { self.0 }
    }

    fn path(&self, memcg: MemcgId) -> String {
        if memcg == MemcgId::ROOT { "/" } else { "/t" }.to_owned()
    }

    fn by_id(&self, id: u64) -> Option<MemcgId> {
        match id {
            1 => Some(MemcgId::ROOT),
            id if id == self.0 => Some(MemcgId(1)),
            _ => None,
        }
    }
}

/// A cgroup with 600 anon pages, well below its limit.
fn machine(profile: &str) -> (Machine, Names) {
    machine_of(profile, Pattern::AnonUniform)
}

fn machine_of(profile: &str, pattern: Pattern) -> (Machine, Names) {
    machine_with(*Profile::by_name(profile).expect("known profile"), pattern)
}

pub fn machine_with(profile: Profile, pattern: Pattern) -> (Machine, Names) {
    let workload = Workload {
        pattern,
        pages: 600,
        touches: 0,
        theta: 0.0,
        hot: 0,
        seed: 1,
    };
    let settings = Settings {
        profile,
        ..Settings::default()
    };
    let mut machine = Machine::new(&workload, settings, 1024, false);
    machine.populate(&Trace::new(workload));
    let names = Names(if profile.name == "7.2" { 28 } else { 2 });
    (machine, names)
}

/// The errno of a write; 0 if it succeeds.
pub fn write(machine: &mut Machine, names: &Names, text: &str) -> i32 {
    let result = mglru::write(&mut machine.lru, &mut machine.world, names, text.as_bytes());
    match result {
        Ok(written) => {
            assert_eq!(written, text.len());
            0
        }
        Err(error) => error.errno(),
    }
}

fn max_seq(machine: &Machine) -> u64 {
    machine.lru.lruvecs[machine.lruvec().index()].mglru.max_seq
}

/// Ages until the youngest generation is `seq`.
pub fn age_to(machine: &mut Machine, names: &Names, seq: u64) {
    while max_seq(machine) < seq {
        let command = format!("+ {} 0 {}", names.0, max_seq(machine));
        assert_eq!(write(machine, names, &command), 0);
    }
}

#[test]
fn lru_gen_reads_as_in_7_2() {
    let (mut machine, names) = machine("7.2");
    machine.lru.drain_all();
    machine.world.now_ns = 1_775_900_000;
    assert_eq!(
        mglru::render(&machine.lru, &names, machine.world.now_ns, false),
        "memcg 1 /\n node     0\n\
         \u{20}         0       1772          0           0 \n\
         \u{20}         1       1772          0           0 \n\
         \u{20}         2       1772          0           0 \n\
         \u{20}         3       1772          0           0 \n\
         memcg 28 /t\n node     0\n\
         \u{20}         0       1772          0           0 \n\
         \u{20}         1       1772          0           0 \n\
         \u{20}         2       1772        602           0 \n\
         \u{20}         3       1772          0           0 \n"
    );
}

#[test]
fn lru_gen_full_shows_counters_and_walks() {
    let (mut machine, names) = machine("6.12");
    machine.lru.drain_all();
    age_to(&mut machine, &names, 5);
    let text = mglru::render(&machine.lru, &names, machine.world.now_ns, true);
    let cgroup: Vec<&str> = text
        .split("memcg     2 /t\n")
        .nth(1)
        .unwrap()
        .lines()
        .collect();
    assert_eq!(cgroup[0], " node     0");
    assert_eq!(cgroup[1], "          2          0          0           0 ");
    assert_eq!(
        cgroup[2],
        "                     0          0r          0e          0p          0r          0e          0p"
    );
    assert_eq!(
        cgroup[6],
        "                                0x          0x          0x          0x"
    );
    assert_eq!(
        cgroup[20],
        "                     0          0R          0T          0x          0R          0T          0x"
    );
    // Both walks were forced: 2 x 602 entries, all young in the first walk.
    assert_eq!(
        cgroup[24],
        "                             1204T        602Y          6F          3A"
    );
}

/// Runs commands one after the other and checks the errno of each.
fn check(profile: &str, start: u64, commands: &[(&str, i32)]) {
    let (mut machine, names) = machine(profile);
    age_to(&mut machine, &names, start);
    for &(text, errno) in commands {
        assert_eq!(
            write(&mut machine, &names, text),
            errno,
            "{profile}: {text:?}"
        );
    }
}

const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

#[test]
fn commands_fail_as_in_6_12() {
    check(
        "6.12",
        10,
        &[
            ("+ 2 0 11", EINVAL),
            ("+ 2 0 9", 0),
            ("+ 2 0 0", 0),
            ("+ 9999 0 10", EINVAL),
            ("+ 2 7 10", EINVAL),
            ("+ 2 0", EINVAL),
            ("+", EINVAL),
            ("x 2 0 10", EINVAL),
            ("hello", EINVAL),
            ("", EINVAL),
            ("\n", EINVAL),
            ("+ 2 0 10 1 1 1", EINVAL),
            ("+ 2 0 10 2 1", 0),
            ("+ 2 0 11 200 1", 0),
            ("+ 2 0 12 201 1", EINVAL),
            ("+ 2 0 12 1 2", 0),
            ("+ 2 0 13 -1 1", EINVAL),
            ("+ 2 0 13 1 0", ERANGE),
            ("- 2 0 12 1 10", EINVAL),
            ("- 2 0 11 1 10", 0),
            ("- 2 0 0 1 10", 0),
            ("- 2 0 11 201 10", EINVAL),
            ("- 2 0 11 max 10", EINVAL),
            ("- 2 0 11 60 0", 0),
            ("- 2 0 11 60 -5", EINVAL),
            ("- 2 0 11 60 10 10", EINVAL),
            ("+ 2 0 13 1 1;- 2 0 12 60 32", 0),
            ("+ 2 0 14 1 1\n- 2 0 13 60 32\n", 0),
            ("+ 2 0 15 1 1, - 2 0 14 60 32", 0),
            ("+ 2 0 19, + 2 0 16", EINVAL),
            ("+2 0 16", 0),
            ("+ 0 0  1 1", EINVAL),
            ("+ 1 0 3 1 1", 0),
        ],
    );
}

#[test]
fn commands_fail_as_in_7_2() {
    check(
        "7.2",
        11,
        &[
            ("+ 28 0 12", EINVAL),
            ("+ 28 0 10", 0),
            ("+ 28 0 0", 0),
            ("+ 28 7 11", EINVAL),
            ("+ 28 0", EINVAL),
            ("+ 28 0 13 2 1", 0),
            ("+ 28 0 14 200 1", 0),
            ("+ 28 0 15 201 1", 0),
            ("+ 28 0 16 1 2", 0),
            ("+ 28 0 17 -1 1", EINVAL),
            ("+ 28 0 17 202 1", EINVAL),
            ("+ 28 0 17 max", 0),
            ("+ 28 0 18 0x3c 0", 0),
            ("- 28 0 18 1 10", EINVAL),
            ("- 28 0 17 201 10", 0),
            ("- 28 0 17 max 10", 0),
            ("- 28 0 17 300 10", EINVAL),
            ("- 28 0 17 60 -5", EINVAL),
            ("- 28 0 17 60 10 10", EINVAL),
            ("+ 28 0 23, + 28 0 19", EINVAL),
            ("+ 1 0 3 1 1", 0),
        ],
    );
}

/// A command for an old generation ages in 7.2, but not in 6.12.
#[test]
fn a_late_command_ages_in_7_2_only() {
    for (profile, grown) in [("7.2", 1), ("6.12", 0), ("v6", 0)] {
        let (mut machine, names) = machine(profile);
        age_to(&mut machine, &names, 6);
        assert_eq!(
            write(&mut machine, &names, &format!("+ {} 0 5", names.0)),
            0
        );
        assert_eq!(max_seq(&machine), 6 + grown, "{profile}");
    }
}

/// Eviction stops at the requested number of pages: exactly in 7.2, in rounds of 64 in 6.12.
#[test]
fn eviction_by_command_counts_pages() {
    for (profile, steal) in [("7.2", 100), ("6.12", 128)] {
        let (mut machine, names) = machine(profile);
        machine.lru.drain_all();
        age_to(&mut machine, &names, 6);
        let id = names.0;
        assert_eq!(
            write(&mut machine, &names, &format!("- {id} 0 4 200 100")),
            0
        );
        assert_eq!(machine.counts()[1], steal, "{profile}");
    }
}

/// From 6.14 on one type may be ahead of the other, and eviction goes on until both are out of
/// generations.
#[test]
fn file_may_be_evicted_after_anon_has_run_out() {
    for (profile, steal) in [("7.2", 500), ("6.14", 531)] {
        let (mut machine, names) = machine_of(profile, Pattern::FileUniform);
        machine.lru.drain_all();
        let command = format!("- {} 0 1 60 500", names.0);
        assert_eq!(write(&mut machine, &names, &command), 0);
        assert_eq!(machine.counts()[1], steal, "{profile}");
    }
}

#[test]
fn enabled_reads_and_writes_as_in_the_kernel() {
    let (mut machine, _) = machine("7.2");
    let lru = &mut machine.lru;
    let cases: [(&str, &str); 14] = [
        ("y", "0x0007\n"),
        ("n", "0x0000\n"),
        ("1", "0x0001\n"),
        ("2", "0x0002\n"),
        ("4", "0x0004\n"),
        ("5", "0x0005\n"),
        ("8", "0x0000\n"),
        ("0xf", "0x0007\n"),
        ("foo", "0x0007\n"),
        ("", "0x0007\n"),
        ("-1", "0x0007\n"),
        ("N", "0x0000\n"),
        ("on", "0x0000\n"),
        ("255\n", "0x0007\n"),
    ];
    for (text, after) in cases {
        let result = sysfs::enabled_store(lru, text.as_bytes());
        let bad = matches!(text, "foo" | "-1" | "on");
        assert_eq!(result.is_err(), bad, "{text:?}");
        assert_eq!(sysfs::enabled_show(lru), after, "{text:?}");
    }
}

#[test]
fn min_ttl_is_kept_in_ticks() {
    let (mut machine, _) = machine("6.12");
    let lru = &mut machine.lru;
    for (text, after) in [
        ("1000", "1000\n"),
        ("1", "4\n"),
        ("4", "4\n"),
        ("5\n", "8\n"),
        ("999999999", "1000000000\n"),
        ("-1", "1000000000\n"),
        ("abc", "1000000000\n"),
        ("0x10", "16\n"),
        ("18446744073709551615", "16\n"),
        ("4294967295", "4294967288\n"),
        ("0", "0\n"),
    ] {
        let _ = sysfs::min_ttl_store(lru, text.as_bytes());
        assert_eq!(sysfs::min_ttl_show(lru), after, "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any input results in an errno or the length, and the lists stay consistent.
    #[test]
    fn any_bytes_are_answered(
        text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "([-+x] ?[0-9]{1,20} [01] [0-9]{1,3}( [0-9max]{1,5}( [0-9]{1,3})?)?[,;\n ]?){0,3}"
                .prop_map(String::into_bytes),
        ],
        profile in prop::sample::select(vec!["7.2", "6.12", "v6"]),
    ) {
        let (mut machine, names) = machine(profile);
        let _ = mglru::write(&mut machine.lru, &mut machine.world, &names, &text);
        let _ = sysfs::enabled_store(&mut machine.lru, &text);
        let _ = sysfs::min_ttl_store(&mut machine.lru, &text);
        machine.verify();
    }

    /// A command that is printed and parsed stays the same.
    #[test]
    fn commands_survive_printing(
        memcg_id in any::<u32>(),
        node in any::<u32>(),
        seq in any::<u64>(),
        swappiness in prop::option::of(0u32..=201),
        option in any::<u32>(),
    ) {
        for profile in ["7.2", "6.12"] {
            let syntax = Profile::by_name(profile).unwrap().debugfs;
            let tail = swappiness.map_or(String::new(), |s| format!(" {s} {option}"));
            let text = format!("- {memcg_id} {node} {seq}{tail}  ");
            let expected = Command {
                verb: b'-',
                memcg_id: memcg_id.into(),
                node,
                seq,
                swappiness,
                option: swappiness.map(|_| option.into()),
            };
            prop_assert_eq!(Command::parse(text.as_bytes(), syntax), Ok(expected));
        }
    }
}
