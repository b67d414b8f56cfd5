// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

pub(crate) const SMALL: &str = r#"
    description = "a test"
    memory = "1MiB"
    [[process]]
    name = "one"
    [[process.area]]
    name = "heap"
    size = "2MiB"
    [[process.phase]]
    populate = ["heap"]
    touches = 10
    [[process.phase.stream]]
    area = "heap"
    order = "zipf"
"#;

#[test]
fn a_small_workload_is_read() {
    let workload = Workload::parse("small", SMALL).unwrap();
    assert_eq!((workload.name.as_str(), workload.cpus), ("small", 1));
    assert_eq!(
        workload.area_pages(&workload.process[0].area[0]).unwrap(),
        512
    );
}

#[test]
fn faults_say_what_and_where() {
    for (from, to, expected) in [
        (
            "memory = \"1MiB\"",
            "memory = \"1MiB\"\nswap = \"nmve\"",
            "swap `nmve` is none of zram",
        ),
        ("memory = \"1MiB\"", "memory = \"lots\"", "lots"),
        ("size = \"2MiB\"", "", "needs a size"),
        (
            "populate = [\"heap\"]",
            "populate = [\"stack\"]",
            "no area `stack`",
        ),
        ("order = \"zipf\"", "order = \"random\"", "random"),
        ("order = \"zipf\"", "order = \"zipf\"\ncolour = 1", "colour"),
        (
            "order = \"zipf\"",
            "order = \"zipf\"\nfrom = 0.5\nto = 0.5",
            "from and to",
        ),
        ("touches = 10", "touches = -1", "touches"),
        (
            "touches = 10",
            "touches = 10\nrelease = [\"stack\"]",
            "no area `stack`",
        ),
        (
            "name = \"one\"",
            "name = \"one\"\nhighest_zone = \"high\"",
            "none of dma",
        ),
        (
            "memory = \"1MiB\"",
            "memory = \"1MiB\"\nzones = { normal = \"1MiB\", high = \"1MiB\" }",
            "high",
        ),
        (
            "memory = \"1MiB\"",
            "memory = \"1MiB\"\nzones = { normal = \"many\" }",
            "many",
        ),
    ] {
        let error = Workload::parse("bad", &SMALL.replace(from, to)).unwrap_err();
        let text = format!("{error}");
        assert!(text.contains(expected) && text.contains("bad"), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "[ -~\n]{0,200}") {
        let _ = Workload::parse("fuzz", &text);
    }

    #[test]
    fn no_damage_panics(at in 0usize..400, text in "[ -~\n]{0,12}") {
        let mut damaged = SMALL.to_owned();
        let at = at % damaged.len();
        damaged.replace_range(at..at, &text);
        let _ = Workload::parse("fuzz", &damaged);
    }
}
