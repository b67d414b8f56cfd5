// SPDX-License-Identifier: Apache-2.0
//! The configuration: one TOML file. Every value is checked where it is read, so that an error
//! carries its line and key; a key that is not known is an error too.
//!
//! Nothing in it names a program to run, and nothing ever will: a daemon with these privileges must
//! not be a way to run commands.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agewise_engine::proactive::Spec;
use agewise_engine::workingset::Intervals;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units;

/// The defaults with what there is to say about each, as `agewise config default` prints them.
pub const DEFAULT_TEXT: &str = include_str!("../../../../packaging/agewise.toml");

/// Rules and globs are matched for every cgroup at every tick.
const RULES_MAX: usize = 64;
const GLOBS_MAX: usize = 64;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is observed, and how often.
    pub observe: Observe,
    /// What is done to whom; the first rule that fits a cgroup or process counts. None: nothing is
    /// done.
    pub act: Vec<Act>,
    /// Whose working set is to be kept.
    pub protect: Protect,
    /// Where actions are written down.
    pub journal: Journal,
    /// Working-set report files.
    pub files: Files,
    /// Metrics and the page.
    pub metrics: Metrics,
}

/// What is observed, and how often.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// Cgroups, by patterns of their path below the hierarchy that accounts memory: `*` is any part
    /// of one name, `**` any number of names.
    pub cgroups: Vec<PathGlob>,
    /// Processes, by pid: whichever process has it.
    pub pids: BTreeSet<u32>,
    /// Levels of cgroups looked through.
    pub depth_max: Count<64>,
    /// Cgroups looked through.
    pub cgroups_max: Count<65536>,
    /// Time from look to look.
    pub tick: Span,
    /// Share of one core that all of the daemon may take, percent. When it is short of that it looks
    /// less often.
    pub cpu_percent: Percent,
    /// Upper bounds of the age bins.
    pub intervals: Bounds,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Act {
    /// Cgroups it is for, by patterns as above. Of cgroups below one another the lowest that fits a
    /// rule is acted upon.
    #[serde(default)]
    pub cgroups: Vec<PathGlob>,
    /// Processes it is for.
    #[serde(default)]
    pub pids: BTreeSet<u32>,
    /// The policy with its parameters: `age:10s/40s`, `pressure`, `cost`, `budget:512M`.
    pub policy: PolicySpec,
    /// Do everything but move memory, and write down what would have been done. On unless switched
    /// off.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// Mark memory as the first to go some time before it is moved out, so that the kernel, should
    /// it need memory before, takes this and not what is in use.
    #[serde(default)]
    pub sort_first: bool,
}

/// Whose working set is to be kept, and what is done when it cannot be.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Protect {
    /// Cgroups, by patterns. None: nothing is watched for.
    pub cgroups: Vec<PathGlob>,
    /// What was used within this time belongs to the working set.
    pub min_ttl: Span,
    /// How far to go: `report` names the guilty; `squeeze` also moves their coldest memory out.
    pub up_to: UpTo,
}

/// The hardest step allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpTo {
    /// Say who it is.
    Report,
    /// Move the memory of the guilty out, the coldest first.
    Squeeze,
}

/// Where actions are written down, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// `-` for standard output, or a file.
    pub file: PathBuf,
    /// A file larger than this is renamed to `FILE.1`, that to `FILE.2`, and so on.
    pub size_max: Size,
    /// Renamed files kept.
    pub keep: Count<100>,
}

/// Working-set report files.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Files {
    /// Whether there are any.
    pub enabled: bool,
    /// The directory; it must be empty or missing.
    pub directory: PathBuf,
}

/// Metrics and the page.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether they are served.
    pub enabled: bool,
    /// `ADDRESS:PORT` (loopback unless `allow_remote`), or `unix:PATH`.
    pub listen: Listen,
    /// Allow an address that other machines reach. Nothing served can change anything, but names of
    /// cgroups and sizes are told to whoever asks.
    pub allow_remote: bool,
    /// Names of this machine under which it may be asked for, besides localhost and bare addresses.
    /// A request for another name is refused: it may come from a page of another site.
    pub hosts: Vec<String>,
    /// Who may use the socket of `unix:PATH`: its mode.
    pub socket_mode: SocketMode,
    /// Cgroups shown: the largest.
    pub cgroups_max: Count<4096>,
    /// Levels of cgroups shown.
    pub depth_max: Depth,
}

fn yes() -> bool {
    true
}

impl Default for Observe {
    fn default() -> Self {
        Observe {
            cgroups: vec![PathGlob::new("/**").expect("a pattern")],
            pids: BTreeSet::new(),
            depth_max: Count(8),
            cgroups_max: Count(1024),
            tick: Span(Duration::from_secs(5)),
            cpu_percent: Percent(1.0),
            intervals: Bounds("1s,5s,30s,2m,10m".parse().expect("a list of ages")),
        }
    }
}

impl Default for Protect {
    fn default() -> Self {
        Protect {
            cgroups: Vec::new(),
            min_ttl: Span(Duration::from_secs(1)),
            up_to: UpTo::Report,
        }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Journal {
            file: "-".into(),
            size_max: Size(16 << 20),
            keep: Count(4),
        }
    }
}

impl Default for Files {
    fn default() -> Self {
        Files {
            enabled: false,
            directory: "/run/agewise".into(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            enabled: false,
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 9779))),
            allow_remote: false,
            hosts: Vec::new(),
            socket_mode: SocketMode(0o600),
            cgroups_max: Count(50),
            depth_max: Depth(3),
        }
    }
}

/// Text in the file that stands for a value: `TryFrom<String>` both ways, and a string in the
/// schema.
macro_rules! textual {
    ($name:ident, $description:literal, $pattern:literal) => {
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

/// A time with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

impl Span {
    fn parse(text: &str) -> Result<Self, String> {
        let span = units::positive_duration(text)?;
        if span < Duration::from_millis(100) || span > Duration::from_secs(86_400) {
            return Err(format!("'{text}' is not within 100ms and 1d"));
        }
        Ok(Span(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

textual!(
    Span,
    "a time from 100ms to 1d with its unit: 500ms, 30s, 2m, 1h",
    "^ *[0-9.]+ *(ns|us|ms|s|m|h|d) *$"
);

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub u64);

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        match units::size(text)? {
            bytes if bytes < 64 << 10 => Err(format!("'{text}' is less than 64K")),
            bytes => Ok(Size(bytes)),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

textual!(
    Size,
    "bytes, at least 64K, in powers of two: 512M, 1.5G",
    "^ *[0-9.]+ *([KMGT]i?B?|B)? *$"
);

/// Bounds of age bins.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bounds(pub Intervals);

impl Bounds {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Bounds)
            .map_err(|error: agewise_engine::workingset::IntervalError| error.to_string())
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = self.0.bounds_ms().iter();
        let texts: Vec<String> = bounds.map(|ms| format!("{ms}ms")).collect();
        f.write_str(&texts.join(","))
    }
}

textual!(
    Bounds,
    "upper bounds of age bins, increasing, at most 31: 1s,5s,30s",
    "^[0-9.a-z, ]+$"
);

/// A policy with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicySpec(pub Spec);

impl PolicySpec {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map(PolicySpec)
            .map_err(|error: agewise_engine::proactive::SpecError| error.to_string())
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

textual!(
    PolicySpec,
    "a policy and its parameters: age:10s/40s, pressure, cost:stall=0.1%, budget:512M",
    "^ *(age|pressure|cost|budget)(:.*)?$"
);

/// A pattern of cgroup paths.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathGlob(Glob);

impl PathGlob {
    fn new(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err(format!(
                "'{text}' is not a pattern of cgroup paths: they begin with / (the root of the \
                 hierarchy that accounts memory)"
            ));
        }
        // A name may contain anything but a slash, so that `[` and `{` need a backslash.
        GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map(PathGlob)
            .map_err(|error| error.to_string())
    }

    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text)
    }
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.glob())
    }
}

textual!(
    PathGlob,
    "a pattern of cgroup paths; * is any part of a name, ** any number of names",
    "^/"
);

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
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("'{text}': the path of a socket begins with /"));
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

/// Who may use a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

impl SocketMode {
    fn parse(text: &str) -> Result<Self, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode & !0o666 == 0 && !text.starts_with('+') => Ok(SocketMode(mode)),
            _ => Err(format!(
                "'{text}' is not the mode of a socket: 0600 is its user alone, 0660 the group too"
            )),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

textual!(
    SocketMode,
    "the mode of a socket in octal: 0600, 0660, 0666",
    "^[0-6]{1,4}$"
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
            Err(format!("{percent} is not within 0.01 and 100 percent"))
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

/// Levels below the root; 0 is the root alone.
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

/// A schema that stands where it is used.
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

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is larger than any configuration.
    #[error("{} is larger than 1 MiB, which is no configuration", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// What it says makes no sense; the message has line and key.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, where.
        message: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        use std::io::Read;
        const SIZE_MAX: u64 = 1 << 20;
        let unreadable = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        let read = file
            .take(SIZE_MAX + 1)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        if read as u64 > SIZE_MAX {
            return Err(ConfigError::TooLarge {
                path: path.to_owned(),
            });
        }
        Self::parse(&text).map_err(|message| ConfigError::Invalid {
            path: path.to_owned(),
            message,
        })
    }

    /// Reads and checks the text of a configuration.
    ///
    /// # Errors
    /// What is wrong, with line and key where it is a matter of one key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Config =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        config.check()?;
        Ok(config)
    }

    /// What no key can tell by itself.
    fn check(&self) -> Result<(), String> {
        if self.act.len() > RULES_MAX {
            return Err(format!(
                "act: {} rules, at most {RULES_MAX}",
                self.act.len()
            ));
        }
        for (number, act) in (1..).zip(&self.act) {
            if act.cgroups.is_empty() && act.pids.is_empty() {
                return Err(format!(
                    "act: rule {number} (policy = \"{}\") is for nobody: give it cgroups or pids",
                    act.policy
                ));
            }
        }
        let lists = [&self.observe.cgroups, &self.protect.cgroups]
            .into_iter()
            .chain(self.act.iter().map(|a| &a.cgroups));
        for globs in lists {
            if globs.len() > GLOBS_MAX {
                return Err(format!(
                    "cgroups: {} patterns in one list, at most {GLOBS_MAX}",
                    globs.len()
                ));
            }
        }
        if let Listen::Tcp(address) = &self.metrics.listen
            && !address.ip().is_loopback()
            && !self.metrics.allow_remote
        {
            return Err(format!(
                "metrics.listen: {address} can be reached from other machines; set \
                 metrics.allow_remote = true if that is meant"
            ));
        }
        Ok(())
    }

    /// The schema of the file (JSON Schema 2020-12).
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Config).to_value()
    }
}

/// The patterns of a configuration, compiled.
#[derive(Clone, Debug)]
pub struct Matcher {
    observe: GlobSet,
    protect: GlobSet,
    rules: Vec<(GlobSet, BTreeSet<u32>)>,
    pids: BTreeSet<u32>,
}

impl Matcher {
    /// Of a configuration that was checked.
    ///
    /// # Errors
    /// Patterns that are too large together.
    pub fn new(config: &Config) -> Result<Self, globset::Error> {
        let set = |globs: &[PathGlob]| {
            let mut builder = GlobSetBuilder::new();
            for glob in globs {
                builder.add(glob.0.clone());
            }
            builder.build()
        };
        let rules = config
            .act
            .iter()
            .map(|act| Ok((set(&act.cgroups)?, act.pids.clone())))
            .collect::<Result<_, globset::Error>>()?;
        let mut pids = config.observe.pids.clone();
        pids.extend(config.act.iter().flat_map(|act| &act.pids));
        Ok(Matcher {
            observe: set(&config.observe.cgroups)?,
            protect: set(&config.protect.cgroups)?,
            rules,
            pids,
        })
    }

    /// Whether a cgroup is looked at: as asked for, or because a rule is for it.
    pub fn is_observed(&self, path: &str) -> bool {
        self.observe.is_match(path) || self.is_protected(path) || self.rule(path).is_some()
    }

    /// Whether the working set of a cgroup is to be kept.
    pub fn is_protected(&self, path: &str) -> bool {
        self.protect.is_match(path)
    }

    /// The rule for a cgroup.
    pub fn rule(&self, path: &str) -> Option<usize> {
        self.rules.iter().position(|(set, _)| set.is_match(path))
    }

    /// The rule for a process that was given by pid.
    pub fn rule_of_pid(&self, pid: u32) -> Option<usize> {
        self.rules.iter().position(|(_, pids)| pids.contains(&pid))
    }

    /// All processes given by pid.
    pub fn pids(&self) -> Vec<u32> {
        self.pids.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests;
