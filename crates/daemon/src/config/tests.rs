// SPDX-License-Identifier: Apache-2.0
use std::path::Path;

use proptest::prelude::*;

use super::*;

fn error(text: &str) -> String {
    Config::parse(text).unwrap_err()
}

#[test]
fn the_commented_defaults_are_the_defaults() {
    assert_eq!(Config::parse(DEFAULT_TEXT).unwrap(), Config::default());
    assert_eq!(Config::parse("").unwrap(), Config::default());
    let sent = |line: &&str| !line.starts_with("# [metrics.otlp]");
    let otlp = DEFAULT_TEXT.lines().skip_while(sent);
    let otlp: Vec<&str> = otlp.filter_map(|line| line.strip_prefix("# ")).collect();
    let otlp = Config::parse(&otlp.join("\n")).unwrap().metrics.otlp;
    let least = Config::parse("metrics.otlp.endpoint = 'http://127.0.0.1:4318'").unwrap();
    let least = least.metrics.otlp.unwrap();
    let headers_file = Some("/etc/agewise/otlp-headers".into());
    assert_eq!(
        otlp,
        Some(Otlp {
            headers_file,
            ..least
        })
    );
    // The example of a rule is valid once its comment signs are removed.
    let rule: String = DEFAULT_TEXT
        .lines()
        .skip_while(|line| *line != "# [[act]]")
        .take_while(|line| !line.is_empty())
        .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
        .collect();
    let config = Config::parse(&rule).unwrap();
    assert_eq!(config.act.len(), 1);
    let rule = &config.act[0];
    assert!(rule.dry_run && !rule.sort_first && !rule.files && !rule.guests);
}

#[test]
fn file_memory_is_taken_where_a_rule_can_and_followed_then() {
    let rule = |whom: &str, policy: &str| {
        Config::parse(&format!(
            "[[act]]\n{whom}\npolicy = '{policy}'\nfiles = true\n"
        ))
    };
    let held = rule("cgroups = ['/a']", "budget:1G").unwrap();
    assert!(
        held.act[0].files && !held.follows_files(),
        "who holds looks itself"
    );
    for policy in ["age:10s/40s", "cost", "pressure"] {
        let config = rule("cgroups = ['/a']", policy).unwrap();
        assert!(config.follows_files() && !config.observe.files);
    }
    for (whom, policy, wanted) in [
        ("cgroups = ['/a']", "shrink", "the kernel selects"),
        ("pids = [7]", "cost", "charged to cgroups"),
    ] {
        let error = rule(whom, policy).unwrap_err();
        assert!(
            error.contains("files = true") && error.contains(wanted),
            "{error}"
        );
    }
}

#[test]
fn the_order_that_harms_on_purpose_is_refused() {
    let rule = |by: &str| format!("[[act]]\ncgroups = ['/a']\npolicy = 'budget:1G,by={by}'\n");
    assert!(Config::parse(&rule("heat")).is_ok());
    let error = error(&rule("worst"));
    assert!(
        error.contains("rule 1") && error.contains("in the lab"),
        "{error}"
    );
}

#[test]
fn what_is_written_is_read_back() {
    let text = "observe.pids = [7, 9]\nobserve.tick = '2.5s'\nobserve.intervals = '1s, 2m'\n\
                metrics.listen = 'unix:/run/a.sock'\njournal.size_max = '1.5M'\n\
                [[act]]\ncgroups = ['/a/**/b*']\npolicy = 'age:10s/40s,floor=1M'\n\
                dry_run = false\n";
    let config = Config::parse(text).unwrap();
    assert_eq!(config.journal.size_max, Size(3 << 19));
    assert_eq!(config.observe.tick, Span(Duration::from_millis(2500)));
    let again = Config::parse(&toml::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_huge_number_is_shown_as_it_is_written() {
    let error = Config::parse("[observe]\ncpu_percent = 1e308\n").unwrap_err();
    assert!(
        error.to_string().contains("\n1e308 is not within"),
        "{error}"
    );
}

#[test]
fn errors_carry_line_and_key() {
    for (text, wanted) in [
        ("\n[observe]\ntick = 5\n", vec!["line 3", "tick = 5"]),
        (
            "[observe]\ntick = '5'\n",
            vec!["line 2", "write it with its unit"],
        ),
        ("[observe]\ntick = '1ms'\n", vec!["line 2", "100ms and 1d"]),
        (
            "[observe]\ntik = '5s'\n",
            vec!["line 2", "unknown field `tik`", "`tick`"],
        ),
        ("[observ]\n", vec!["line 1", "unknown field `observ`"]),
        (
            "[observe]\ncgroups = ['app']\n",
            vec!["line 2", "begin with /"],
        ),
        (
            "[observe]\ncgroups = ['/a[']\n",
            vec!["line 2", "character class"],
        ),
        (
            "[observe]\ncpu_percent = 0\n",
            vec!["line 2", "cpu_percent"],
        ),
        (
            "[observe]\nintervals = '5s,1s'\n",
            vec!["line 2", "must increase"],
        ),
        ("[observe]\ndepth_max = 99\n", vec!["line 2", "1 and 64"]),
        (
            "[[act]]\ncgroups=['/a']\npolicy = 'ages'\n",
            vec!["line 3", "no proactive policy is called \"ages\""],
        ),
        (
            "[[act]]\npolicy = 'cost:stal=1%'\npids=[1]\n",
            vec!["line 2", "unknown key \"stal\""],
        ),
        (
            "[[act]]\ncgroups=['/a']\n",
            vec!["line 1", "missing field `policy`"],
        ),
        (
            "[[act]]\npolicy='cost'\npids=[2]\n[[act]]\npolicy = 'cost'\n",
            vec!["rule 2", "applies to nothing"],
        ),
        (
            "[metrics]\nlisten = 'here'\n",
            vec!["line 2", "127.0.0.1:9779"],
        ),
        (
            "[metrics]\nlisten = '0.0.0.0:1'\n",
            vec!["metrics.listen", "allow_remote"],
        ),
        (
            "[metrics]\nlisten = 'unix:x'\n",
            vec!["line 2", "begins with /"],
        ),
        ("[journal]\nkeep = 0\n", vec!["line 2", "1 and 100"]),
        ("[observe\n", vec!["line 1"]),
        (
            "[protect]\ncgroups=['/a']\nup_to = 'murder'\n",
            vec!["line 3", "`freeze`", "`kill`"],
        ),
        (
            "[protect]\ncgroups=['/a']\nfreeze = '2m'\n",
            vec!["line 3", "100ms and 60s"],
        ),
        ("[protect]\nspare = ['a']\n", vec!["line 2", "begin with /"]),
        (
            "[protect]\nup_to = 'kill'\n",
            vec!["protect.up_to", "protect.cgroups"],
        ),
        ("[protect]\nledger = 'here'\n", vec!["protect.ledger"]),
        // There are no keys that would run a command.
        (
            "[[act]]\npolicy='cost'\npids=[2]\nexec='x'\n",
            vec!["line 4", "unknown field `exec`"],
        ),
    ] {
        let error = error(text);
        for part in wanted {
            assert!(error.contains(part), "{text:?}: no {part:?} in: {error}");
        }
    }
}

/// Wrong kinds, signs, sizes, units and addresses, and what is said twice.
const HOSTILE: &[&str] = &[
    "x = 1",
    "observe = 1",
    "[[observe]]",
    "[observe]\n[observe]",
    "[observe]\ntick = '5s'\ntick = '6s'",
    "observe.tick.x = 1",
    "observe = { tick = '5s', tick = '6s' }",
    "act = 1",
    "[act]\npolicy = 'cost'",
    "'''",
    "a = 'x",
    "\u{1}",
    "[observe]\ntick = '-1s'",
    "[observe]\ntick = '0s'",
    "[observe]\ntick = '99999999999999999999s'",
    "[observe]\ntick = '5 parsecs'",
    "[observe]\ntick = ''",
    "[observe]\ntick = nan",
    "[observe]\ncpu_percent = nan",
    "[observe]\ncpu_percent = inf",
    "[observe]\ncpu_percent = -1",
    "[observe]\ncpu_percent = 1e400",
    "[observe]\ncpu_percent = '5'",
    "[observe]\ncgroups = '/a'",
    "[observe]\ncgroups = [1]",
    "[observe]\ncgroups = ['']",
    "[observe]\ncgroups = ['**']",
    "[observe]\ncgroups = ['/{a']",
    "[observe]\npids = [-1]",
    "[observe]\npids = [1.5]",
    "[observe]\npids = ['1']",
    "[observe]\npids = [4294967296]",
    "[observe]\ncgroups_max = 0",
    "[observe]\ncgroups_max = -1",
    "[observe]\ncgroups_max = 18446744073709551616",
    "[observe]\ndepth_max = 0",
    "[observe]\nintervals = ''",
    "[observe]\nintervals = '1s,1s'",
    "[observe]\nintervals = '1s,'",
    "[observe]\nfiles = 'yes'",
    "[[act]]\npids = [2]\npolicy = ''",
    "[[act]]\npids = [2]\npolicy = 'age'",
    "[[act]]\npids = [2]\npolicy = 'age:'",
    "[[act]]\npids = [2]\npolicy = 'age:1s'",
    "[[act]]\npids = [2]\npolicy = 'age:1s/0s'",
    "[[act]]\npids = [2]\npolicy = 'age:-1s/1s'",
    "[[act]]\npids = [2]\npolicy = 'cost:stall=-1%'",
    "[[act]]\npids = [2]\npolicy = 'cost:stall=1e309%'",
    "[[act]]\npids = [2]\npolicy = 'cost:stall=1%,stall=2%'",
    "[[act]]\npids = [2]\npolicy = 'budget:'",
    "[[act]]\npids = [2]\npolicy = 'budget:99999999999G'",
    "[[act]]\npids = [2]\npolicy = 'budget:0'",
    "[[act]]\npids = [2]\npolicy = 'pressure:some=200%'",
    "[[act]]\npids = [2]\npolicy = 'shrink'",
    "[[act]]\ncgroups = ['/a']\npolicy = 'shrink,least=-1'",
    "[[act]]\npids = [2]\npolicy = 'age:10s/40s,floor=99999999999T'",
    "[[act]]\npids = [2]\npolicy = 'age:10s/40s,rate=-1'",
    "[[act]]\npids = [2]\npolicy = 'cost'\ndry_run = 'no'",
    "[[act]]\npids = [2]\npolicy = ['cost']",
    "[[act]]\npids = []\ncgroups = []\npolicy = 'cost'",
    "[metrics]\nlisten = '127.0.0.1:99999'",
    "[metrics]\nlisten = 'localhost:9779'",
    "[metrics]\nlisten = 'unix:'",
    "[metrics]\nlisten = ':9779'",
    "[metrics]\nlisten = ''",
    "[metrics]\nlisten = 9779",
    "[metrics]\nhosts = 'a'",
    "[metrics]\ncgroups_max = -1",
    "[metrics]\ndepth_max = 18446744073709551616",
    "[metrics]\ntextfile = 7",
    "[metrics.otlp]",
    "[metrics.otlp]\nendpoint = ''",
    "[metrics.otlp]\nendpoint = 'https://a:1'",
    "[metrics.otlp]\nendpoint = 'ftp://a:1'",
    "[metrics.otlp]\nendpoint = 'http://'",
    "[metrics.otlp]\nendpoint = 'http://a:99999'",
    "[metrics.otlp]\nendpoint = 'http://a b:1'",
    "[metrics.otlp]\nendpoint = 'http://a:1'\ninterval = '0s'",
    "[metrics.otlp]\nendpoint = 'http://a:1'\ntimeout = '-1s'",
    "[metrics.otlp]\nendpoint = 'http://a:1/\nX: y'",
    "[journal]\nsize_max = '0'",
    "[journal]\nsize_max = '99999999999T'",
    "[journal]\nsize_max = '-1M'",
    "[journal]\nkeep = -1",
    "[journal]\nkeep = 101",
    "[protect]\ncgroups = ['/a']\nmin_ttl = '1ms'",
    "[protect]\ncgroups = ['/a']\nfreeze = '0s'",
    "[protect]\ncgroups = ['/a']\nup_to = 1",
    "[protect]\ncgroups = ['/a']\nup_to = ''",
    "[protect]\ncgroups = ['']",
    "[protect]\nspare = 1",
    "[files]\nenabled = 'yes'",
    "[files]\ndirectory = 1",
];

#[test]
fn hostile_configurations_are_refused_with_a_reason() {
    for text in HOSTILE {
        let error = Config::parse(text).map(drop).expect_err(text);
        assert!(!error.trim().is_empty(), "{text:?}");
    }
}

#[test]
fn a_pid_that_no_process_can_have_is_refused() {
    for (text, pid) in [
        ("[[act]]\npolicy='cost'\npids=[1, 99999999]\n", 99_999_999),
        ("[observe]\npids=[0]\n", 0),
    ] {
        let wanted = format!("pids: {pid} is not a process id");
        assert!(error(text).contains(&wanted), "{text}");
    }
}

#[test]
fn a_journal_that_cannot_be_a_file_is_refused() {
    for file in ["", "/", ".."] {
        let error = error(&format!("[journal]\nfile = '{file}'\n"));
        assert!(
            error.contains(&format!("journal.file: '{file}'")),
            "{error}"
        );
    }
}

#[test]
fn paths_that_name_nothing_are_refused() {
    for (text, wanted) in [
        ("metrics.listen = 'unix:/'", "ends with its name"),
        ("metrics.textfile = ''", "metrics.textfile: ''"),
        ("files.directory = ''", "files.directory: ''"),
        ("files.directory = '/'", "files.directory: '/'"),
    ] {
        let error = error(text);
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn a_file_that_is_missing_or_endless_says_so() {
    let missing = Config::read(Path::new("/nonexistent/agewise.toml")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/agewise.toml"));
    let endless = Config::read(Path::new("/dev/zero")).unwrap_err();
    assert!(
        endless.to_string().contains("not a regular file"),
        "{endless}"
    );
    let large = tempfile::NamedTempFile::new().unwrap();
    large.as_file().set_len(1 << 21).unwrap();
    let large = Config::read(large.path()).unwrap_err();
    assert!(large.to_string().contains("larger than"), "{large}");
}

/// The committed schema is that of the code. To update it:
/// `agewise config schema > packaging/agewise.schema.json`.
#[test]
fn the_committed_schema_is_that_of_the_code() {
    let committed = include_str!("../../../../packaging/agewise.schema.json");
    let committed: serde_json::Value = serde_json::from_str(committed).unwrap();
    assert_eq!(committed, Config::schema());
}

#[test]
fn the_schema_knows_every_key_of_the_defaults() {
    fn check(
        schema: &serde_json::Value,
        root: &serde_json::Value,
        value: &toml::Value,
        path: &str,
    ) {
        let schema = match schema.get("$ref").and_then(|r| r.as_str()) {
            Some(reference) => root.pointer(&reference[1..]).expect("a definition"),
            None => schema,
        };
        if let toml::Value::Table(table) = value {
            assert_eq!(schema["additionalProperties"], false, "{path}");
            for (key, value) in table {
                let property = &schema["properties"][key];
                assert!(property.is_object(), "{path}.{key} is not in the schema");
                check(property, root, value, &format!("{path}.{key}"));
            }
        }
    }
    let schema = Config::schema();
    let defaults = toml::Value::try_from(Config::default()).unwrap();
    check(&schema, &schema, &defaults, "");
}

#[test]
fn rules_match_paths_by_whole_names() {
    let config = Config::parse(
        "[observe]\ncgroups = ['/app/*', '/x']\npids = [4]\n\
         [[act]]\ncgroups = ['/app/**/db*']\npids = [5]\npolicy = 'cost'\n\
         [[act]]\ncgroups = ['/app/**']\npolicy = 'pressure'\n",
    )
    .unwrap();
    let matcher = Matcher::new(&config).unwrap();
    assert!(matcher.is_observed("/app/a") && matcher.is_observed("/x"));
    assert!(!matcher.is_observed("/app") && !matcher.is_observed("/x/y"));
    assert_eq!(matcher.rule("/app/db1"), Some(0));
    assert_eq!(matcher.rule("/app/a/b/db"), Some(0));
    assert_eq!(matcher.rule("/app/a/web"), Some(1));
    assert!(matcher.is_observed("/app/a/web"), "a rule is for it");
    assert_eq!(matcher.rule("/other"), None);
    assert_eq!(
        (matcher.rule_of_pid(5), matcher.rule_of_pid(4)),
        (Some(0), None)
    );
    assert_eq!(matcher.pids(), [4, 5]);
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    for glob in ["/a//b", "/a/../b", "/./a", "/sys/fs/cgroup/memory/a"] {
        let text = format!("[observe]\ncgroups = ['{glob}']\n");
        let error = Config::parse(&text).map(drop).expect_err("matches nothing");
        assert!(error.contains("matches no cgroup"), "{glob}: {error}");
    }
    let config = Config::parse("[observe]\ncgroups = ['/a/']\n").unwrap();
    let matcher = Matcher::new(&config).unwrap();
    assert!(matcher.is_observed("/a") && !matcher.is_observed("/a/b"));
}

/// The daemon can start with any file that passes `config check`: both use [`Config::read`].
#[test]
fn patterns_that_cannot_be_compiled_are_refused() {
    let huge = format!("/{}", "?".repeat(900_000));
    let nested = format!("/{}a{}", "{b,".repeat(3_000), "}".repeat(3_000));
    for glob in [huge, nested] {
        for list in ["observe", "protect"] {
            let text = format!("[{list}]\ncgroups = ['{glob}']\n");
            let error = Config::parse(&text).map(drop).expect_err("no room for it");
            assert!(
                error.contains("cgroups"),
                "{}",
                &error[..error.len().min(300)]
            );
        }
    }
}

proptest! {
    /// Any content is either a configuration, or an error with a message.
    #[test]
    fn anything_is_read_or_refused(text in "[ -~\n]{0,200}") {
        if let Err(error) = Config::parse(&text) {
            prop_assert!(!error.is_empty());
        }
    }

    #[test]
    fn any_value_is_read_or_refused(
        section in "observe|journal|files|metrics",
        key in "tick|cpu_percent|cgroups|intervals|size_max|listen|directory|keep",
        value in "('[ -&(-~]{0,30}'|-?[0-9]{1,20}|[0-9.]{1,10}|true|\\[\\])",
    ) {
        let _ = Config::parse(&format!("[{section}]\n{key} = {value}\n"));
    }

    #[test]
    fn any_path_is_matched_or_not(glob in "/[ -~]{0,20}", path in "/[^\0]{0,40}") {
        if let Ok(glob) = PathGlob::parse(&glob) {
            let mut config = Config::default();
            config.observe.cgroups = vec![glob];
            if let Ok(matcher) = Matcher::new(&config) {
                matcher.is_observed(&path);
            }
        }
    }
}
