// SPDX-License-Identifier: Apache-2.0
//! `agewise lab` as a program: what it prints, what it refuses, and that it repeats itself.

use assert_cmd::Command;

fn agewise(args: &[&str]) -> (bool, String, String) {
    let output = Command::cargo_bin("agewise")
        .expect("the program is built")
        .args(args)
        .output()
        .expect("the program starts");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn runs_print_the_same_bytes_twice() {
    for format in ["table", "json", "csv"] {
        let args = [
            "lab",
            "run",
            "scan",
            "--policy",
            "classic,mglru:7.2",
            "--seeds",
            "2",
            "--format",
            format,
        ];
        let (ok, first, _) = agewise(&args);
        assert!(ok);
        assert!(
            first.contains("major_faults") && first.contains("mglru:7.2"),
            "{first}"
        );
        assert_eq!(first, agewise(&args).1);
    }
}

#[test]
fn what_is_unknown_is_told_with_the_nearest_name() {
    for (args, expected) in [
        (vec!["lab", "run", "scam"], "did you mean `scan`"),
        (vec!["lab", "run", "nothing.toml"], "nothing.toml"),
        (
            vec!["lab", "run", "kv", "--policy", "mglru:7.3"],
            "did you mean `mglru:7.2`",
        ),
        (
            vec!["lab", "run", "kv", "--set", "swapiness=3"],
            "did you mean `swappiness`",
        ),
        (
            vec!["lab", "run", "kv", "--set", "swappiness=300"],
            "0 to 200",
        ),
        (
            vec!["lab", "run", "kv", "--swap", "nvmee"],
            "did you mean `nvme`",
        ),
        (vec!["lab", "run", "kv", "--memory", "100K"], "512 KiB"),
        (vec!["lab", "run", "kv", "--memory", "much"], "no size"),
        (vec!["lab", "inspect", "kv", "--at", "2"], "no time"),
        (
            vec![
                "lab",
                "inspect",
                "kv",
                "--at",
                "1ms",
                "--file",
                "/proc/vmstats",
            ],
            "/proc/vmstat",
        ),
        (
            vec!["lab", "verify-kernel", "--reference", "/nonexistent.csv"],
            "/nonexistent.csv",
        ),
    ] {
        let (ok, _, error) = agewise(&args);
        assert!(!ok && error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn the_machine_shows_its_files() {
    let (ok, text, _) = agewise(&["lab", "inspect", "kv", "--at", "20ms"]);
    assert!(ok && text.starts_with("memcg 1 /\n node     0\n"), "{text}");
    assert!(text.contains("memcg 2 /workload"), "{text}");
    let args = [
        "lab",
        "inspect",
        "kv",
        "--at",
        "20ms",
        "--policy",
        "mglru:6.12",
        "--write",
        "/sys/kernel/mm/lru_gen/min_ttl_ms=5",
        "--file",
        "/sys/kernel/mm/lru_gen/min_ttl_ms",
    ];
    assert_eq!(agewise(&args).1, "8\n");
    let refused = [
        "lab",
        "inspect",
        "kv",
        "--at",
        "1ms",
        "--write",
        "/sys/kernel/debug/lru_gen=x",
    ];
    assert!(agewise(&refused).2.contains("EINVAL"));
}

#[test]
fn everything_is_listed() {
    let (ok, text, _) = agewise(&["lab", "list"]);
    assert!(ok);
    for name in [
        "anon-zipf-099",
        "mglru:v6",
        "hdd",
        "stat_flush_us",
        "stall_full_ms",
    ] {
        assert!(text.contains(name), "{name}");
    }
}

/// Two row sets as the reference has them: measured in guests with Linux 7.2 and 6.12.
const REFERENCE: &str = "\
kver,nomadv,rep,lru_gen_enabled,limit_bytes,phase,pattern,npages,hot,theta,seed,touches,misses,elapsed,pgscan,tracehash,err
7.2.12+deb13-cloud,0,1,0x0007,33554432,populate,file-zipf,16384,0,0.99,12345,16384,0,4.6,8247,255ba275b9a4968d,0
7.2.12+deb13-cloud,0,1,0x0007,33554432,warm,file-zipf,16384,0,0.99,12345,50000,6755,4.2,6794,255ba275b9a4968d,0
7.2.12+deb13-cloud,0,1,0x0007,33554432,main,file-zipf,16384,0,0.99,12345,200000,21557,12.4,21560,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,populate,file-zipf,16384,0,0.99,12345,16384,0,3.4,8260,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,warm,file-zipf,16384,0,0.99,12345,50000,6544,2.2,6531,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,main,file-zipf,16384,0,0.99,12345,200000,19982,10.8,20015,255ba275b9a4968d,0
";

#[test]
fn a_reference_is_verified_line_by_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("reference.csv");
    std::fs::write(&path, REFERENCE).expect("written");
    let path = path.to_str().expect("a plain path");
    let args = [
        "lab",
        "verify-kernel",
        "--reference",
        path,
        "--format",
        "json",
    ];
    let (ok, text, error) = agewise(&args);
    assert!(ok, "{text}{error}");
    let rows: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect();
    assert_eq!(rows.len(), 6);
    let main = &rows[2];
    let keys: Vec<&String> = main.as_object().expect("an object").keys().collect();
    assert_eq!(keys.len(), 15, "{keys:?}");
    assert_eq!(
        (&main["kernel"], &main["lru_gen"]),
        (&"7.2".into(), &7.into())
    );
    let simulated = main["misses_sim"].as_u64().expect("a count");
    assert!((21_000..22_000).contains(&simulated), "{simulated}");
    let (_, only, _) = agewise(&[&args[..], &["--kernel", "6.12"]].concat());
    assert_eq!(only.lines().count(), 3);
    std::fs::write(
        path,
        REFERENCE.replace("255ba275b9a4968d", "255ba275b9a4968e"),
    )
    .expect("written");
    let (ok, _, error) = agewise(&args);
    assert!(!ok && error.contains("trace hash"), "{error}");
}
