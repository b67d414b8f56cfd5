// SPDX-License-Identifier: Apache-2.0
//! Values of the configuration: each is checked as it is parsed, and its schema says what is
//! allowed.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agewise_policy::proactive::{POLICIES, Spec, SpecError};
use agewise_policy::workingset::{IntervalError, Intervals};
use globset::{Glob, GlobBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use agewise_cli::units;

/// A value that is text in the file: converts from and to `String`, and is a string in the schema.
macro_rules! textual {
    ($name:ident, $description:literal, $pattern:expr) => {
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": $description,
                    "pattern": $pattern,
                })
            }
        }
    };
}

pub(super) use textual;

/// A value that is text in the file: what it holds, how it is parsed and written, and its schema.
macro_rules! text_value {
    (
        $(#[$attribute:meta])* $name:ident($of:ty), $description:literal, $pattern:expr,
        parse: $parse:expr, text: $text:expr
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub $of);

        impl $name {
            pub(super) fn parse(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$of, String> = $parse;
                parse(text).map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text: fn(&$of) -> String = $text;
                f.write_str(&text(&self.0))
            }
        }

        textual!($name, $description, $pattern);
    };
}

text_value!(
    /// A time with its unit.
    #[derive(Copy)]
    Span(Duration),
    "a time from 100ms to 1d with its unit: 500ms, 30s, 2m, 1h",
    "^ *[0-9.]+ *(ns|us|ms|s|m|h|d) *$",
    parse: |text| time(text, "1d"),
    text: |time| format!("{}ms", time.as_millis())
);

text_value!(
    /// How long a cgroup may be frozen.
    #[derive(Copy)]
    Pause(Duration),
    "a time from 100ms to 60s with its unit: 10s",
    "^ *[0-9.]+ *(ns|us|ms|s|m|h|d) *$",
    parse: |text| time(text, "60s"),
    text: |time| format!("{}ms", time.as_millis())
);

text_value!(
    /// An amount of memory.
    #[derive(Copy)]
    Size(u64),
    "bytes, at least 64K, in powers of two: 512M, 1.5G",
    "^ *[0-9.]+ *([KMGT]i?B?|B)? *$",
    parse: |text| match units::size(text)? {
        bytes if bytes < 64 << 10 => Err(format!("'{text}' is less than 64K")),
        bytes => Ok(bytes),
    },
    text: u64::to_string
);

text_value!(
    /// Bounds of age bins.
    Bounds(Intervals),
    "upper bounds of age bins, increasing, at most 31: 1s,5s,30s",
    "^[0-9.a-z, ]+$",
    parse: |text| text.parse().map_err(|error: IntervalError| error.to_string()),
    text: |intervals| {
        let texts = intervals.bounds_ms().iter().map(|ms| format!("{ms}ms"));
        texts.collect::<Vec<_>>().join(",")
    }
);

text_value!(
    /// A policy with its parameters.
    PolicySpec(Spec),
    "a policy and its parameters: age:10s/40s, pressure, cost:stall=0.1%, budget:512M, shrink",
    policy_pattern(),
    parse: |text| text.parse().map_err(|error: SpecError| error.to_string()),
    text: Spec::to_string
);

text_value!(
    /// A pattern of cgroup paths.
    PathGlob(Glob),
    "a pattern of cgroup paths; * is any part of a name, ** any number of names",
    "^/",
    parse: glob,
    text: |glob| glob.glob().to_owned()
);

text_value!(
    /// The mode of a socket: who may use it.
    #[derive(Copy)]
    SocketMode(u32),
    "the mode of a socket in octal: 0600, 0660, 0666",
    "^[0-6]{1,4}$",
    parse: |text| match u32::from_str_radix(text, 8) {
        Ok(mode) if mode & !0o666 == 0 && !text.starts_with('+') => Ok(mode),
        _ => Err(format!(
            "'{text}' is not the mode of a socket: 0600 is its user alone, 0660 the group too"
        )),
    },
    text: |mode| format!("{mode:04o}")
);

/// A time from 100 ms to `most`, in whole milliseconds: the file and the daemon only use those.
fn time(text: &str, most: &str) -> Result<Duration, String> {
    let time = units::positive_duration(text)?;
    if time < Duration::from_millis(100) || time > units::positive_duration(most)? {
        return Err(format!("'{text}' is not between 100ms and {most}"));
    }
    Ok(time - Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)))
}

/// Any policy of the registry, with or without parameters.
fn policy_pattern() -> String {
    let names: Vec<&str> = POLICIES.iter().map(|entry| entry.name).collect();
    format!("^ *({})(:.*)?$", names.join("|"))
}

fn glob(text: &str) -> Result<Glob, String> {
    if !text.starts_with('/') {
        return Err(format!(
            "'{text}' is not a pattern of cgroup paths: they begin with / (the root of the \
             hierarchy that accounts memory)"
        ));
    }
    let text = match text.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    let mut names = text[1..].split('/');
    if text != "/" && names.any(|name| matches!(name, "" | "." | "..")) {
        return Err(format!(
            "'{text}' matches no cgroup: paths have no empty names, no . and no .."
        ));
    }
    if text.starts_with("/sys/fs/cgroup/") {
        return Err(format!(
            "'{text}' matches no cgroup: paths begin at the root of the hierarchy that accounts \
             memory, as in /system.slice/cron.service, not at that of the file system"
        ));
    }
    // A name may contain anything except a slash, so `[` and `{` need a backslash.
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|error| error.to_string())
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// A port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Listen {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') || Path::new(path).file_name().is_none() {
                return Err(format!(
                    "'{text}': the path of a socket begins with / and ends with its name"
                ));
            }
            return Ok(Listen::Unix(path.into()));
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            format!("'{text}' is neither ADDRESS:PORT, like 127.0.0.1:9779, nor unix:PATH")
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

textual!(
    Listen,
    "ADDRESS:PORT, or unix:PATH",
    "^(unix:/.*|.*:[0-9]+)$"
);

/// A share of one core.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "f64")]
pub struct Percent(pub f64);

impl TryFrom<f64> for Percent {
    type Error = String;

    fn try_from(percent: f64) -> Result<Self, String> {
        if (0.01..=100.0).contains(&percent) {
            Ok(Percent(percent))
        } else {
            Err(format!("{percent:?} is not within 0.01 and 100 percent"))
        }
    }
}

/// A number from 1 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u64")]
pub struct Count<const MAX: u64>(pub u64);

impl<const MAX: u64> TryFrom<u64> for Count<MAX> {
    type Error = String;

    fn try_from(count: u64) -> Result<Self, String> {
        if (1..=MAX).contains(&count) {
            Ok(Count(count))
        } else {
            Err(format!("{count} is not within 1 and {MAX}"))
        }
    }
}

/// Levels below the root; 0 means only the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u64")]
pub struct Depth(pub u64);

impl TryFrom<u64> for Depth {
    type Error = String;

    fn try_from(depth: u64) -> Result<Self, String> {
        if depth <= 64 {
            Ok(Depth(depth))
        } else {
            Err(format!("{depth} is more than 64 levels"))
        }
    }
}

/// A schema that is written where it is used.
macro_rules! inline_schema {
    ([$($generics:tt)*] $name:ty, $schema:tt) => {
        impl<$($generics)*> JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

inline_schema!([] Percent, {"type": "number", "minimum": 0.01, "maximum": 100.0});
inline_schema!([] Depth, {"type": "integer", "minimum": 0, "maximum": 64});
inline_schema!([const MAX: u64] Count<MAX>, {"type": "integer", "minimum": 1, "maximum": MAX});
