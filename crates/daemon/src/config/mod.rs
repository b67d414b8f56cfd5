// SPDX-License-Identifier: Apache-2.0
//! The configuration: one TOML file. Every value is checked as it is parsed, so that an error
//! states its line and key; an unknown key is also an error.
//!
//! Nothing in it names a program to run, and nothing ever will: a daemon with these privileges must
//! not be a way to run commands.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agewise_host::process::{ProcessError, is_pid};
use agewise_policy::budget::Order;
use agewise_policy::proactive::Controller;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod doubts;
mod matcher;
mod otlp;
mod places;
mod read;
mod values;

pub use matcher::Matcher;
pub use otlp::{Endpoint, Otlp};
pub use places::MADE_AT_START;
pub use values::{
    Bounds, Count, Depth, Listen, PathGlob, Pause, Percent, PolicySpec, Size, SocketMode, Span,
};

/// The defaults with explanations, as `agewise config default` prints them.
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
    /// Rules for acting; the first that matches a cgroup or process applies. Without any, nothing
    /// is done.
    pub act: Vec<Act>,
    /// Whose working set is to be kept.
    pub protect: Protect,
    /// Where actions are recorded.
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
    /// Processes, by pid.
    pub pids: BTreeSet<u32>,
    /// Maximum depth of the cgroup tree to search.
    pub depth_max: Count<64>,
    /// Maximum number of cgroups to search.
    pub cgroups_max: Count<65536>,
    /// Time between looks.
    pub tick: Span,
    /// Share of one core that looking may take, percent; moving memory is not included. If that is
    /// too little the daemon looks less often.
    pub cpu_percent: Percent,
    /// Upper bounds of the age bins.
    pub intervals: Bounds,
    /// Count all file memory of cgroups, mapped or not, for the cgroup it is charged to. This costs
    /// 0.05 to 0.15 us per cached read of 4 KiB, and looks at the page cache.
    pub files: bool,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Act {
    /// Cgroups it applies to, by patterns as above. Of nested cgroups the lowest that matches a
    /// rule is acted upon.
    #[serde(default)]
    pub cgroups: Vec<PathGlob>,
    /// Processes it applies to.
    #[serde(default)]
    pub pids: BTreeSet<u32>,
    /// The policy with its parameters: `age:10s/40s`, `pressure`, `cost`, `budget:512M`,
    /// `shrink`.
    pub policy: PolicySpec,
    /// Do everything except moving memory, and record what would have been done. On by default.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// Mark memory to be reclaimed first some time before it is moved out, so that the kernel, if
    /// it needs memory before that, takes this and not what is in use.
    #[serde(default)]
    pub sort_first: bool,
    /// Also take clean file memory charged to the cgroup, including what no process maps, if it is
    /// on a device of this machine. What is cold is determined as with `observe.files`; a budget
    /// makes its own looks.
    #[serde(default)]
    pub files: bool,
    /// Also take memory of processes that run KVM guests. What guests access is not seen: memory
    /// that looks idle may be in use, and comes back at the guest's expense.
    #[serde(default)]
    pub guests: bool,
}

/// Cgroups whose working set is to be kept, and what is done when it cannot be.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Protect {
    /// Cgroups, by patterns. Empty: nothing is protected.
    pub cgroups: Vec<PathGlob>,
    /// The period over which returning memory is measured: memory used within it belongs to the
    /// working set.
    pub min_ttl: Span,
    /// The harshest step allowed; gentler ones come first.
    pub up_to: UpTo,
    /// How long the culprit stays frozen.
    pub freeze: Pause,
    /// Cgroups that are named but never acted upon, by patterns; nor is a cgroup that holds one.
    pub spare: Vec<PathGlob>,
    /// Cgroups, by patterns, that the kernel is kept from killing at their hard limit while swap
    /// has room: it is made to renew their statistics, since with old ones its classic LRU may find
    /// nothing to reclaim. Up to 64, those nearest to their limit. Nothing else is done to them.
    pub at_limit: Vec<PathGlob>,
    /// Do everything except acting, and record what would have been done.
    pub dry_run: bool,
    /// No longer used: what has to be undone is recorded in the state directory, wherever the
    /// configuration is. Anything that an earlier version recorded here is undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<PathBuf>,
}

/// The harshest step allowed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UpTo {
    /// Name the culprit.
    Report,
    /// Limit the culprit's memory, and move its coldest memory out.
    Squeeze,
    /// Stop its tasks for a while.
    Freeze,
    /// Kill its tasks.
    Kill,
}

impl UpTo {
    /// Its name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            UpTo::Report => "report",
            UpTo::Squeeze => "squeeze",
            UpTo::Freeze => "freeze",
            UpTo::Kill => "kill",
        }
    }
}

/// Where actions are recorded, one JSON object per line.
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
    /// Whether they are provided.
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
    /// Allow an address that other machines can reach. Nothing served can change anything, but
    /// names of cgroups and sizes are shown to anyone who asks.
    pub allow_remote: bool,
    /// Host names accepted in requests, besides localhost and bare addresses.
    /// A request for another name is refused: it may come from a page of another site.
    pub hosts: Vec<String>,
    /// Who may use the socket of `unix:PATH`: its mode.
    pub socket_mode: SocketMode,
    /// Number of cgroups and processes shown that are not containers: the largest.
    pub cgroups_max: Count<4096>,
    /// Number of containers shown, at any depth: the largest.
    pub containers_max: Count<4096>,
    /// Levels of cgroups shown.
    pub depth_max: Depth,
    /// A file that is rewritten at each look, for the textfile collector of node_exporter: an
    /// absolute path that ends with `.prom`. Written whether or not anything is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub textfile: Option<PathBuf>,
    /// Where they are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<Otlp>,
}

fn yes() -> bool {
    true
}

impl Default for Observe {
    fn default() -> Self {
        Observe {
            cgroups: vec![PathGlob::parse("/**").expect("a pattern")],
            pids: BTreeSet::new(),
            depth_max: Count(8),
            cgroups_max: Count(4096),
            tick: Span(Duration::from_secs(5)),
            cpu_percent: Percent(1.0),
            intervals: Bounds("1s,5s,30s,2m,10m".parse().expect("a list of ages")),
            files: false,
        }
    }
}

impl Default for Protect {
    fn default() -> Self {
        Protect {
            cgroups: Vec::new(),
            min_ttl: Span(Duration::from_secs(1)),
            up_to: UpTo::Report,
            freeze: Pause(Duration::from_secs(10)),
            spare: Vec::new(),
            at_limit: Vec::new(),
            dry_run: false,
            ledger: None,
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
            containers_max: Count(1000),
            depth_max: Depth(3),
            textfile: None,
            otlp: None,
        }
    }
}

impl Act {
    /// Whether it is executed in parallel with the ticks, with its own looks.
    fn is_held_ahead(&self) -> bool {
        Controller::new(&self.policy.0).pace().hold.is_some()
    }

    /// Whether it holds a cgroup by means of a limit.
    fn sets_limit(&self) -> bool {
        Controller::new(&self.policy.0).shrinks().is_some()
    }

    /// Checks the rule; the error says what is wrong with it.
    fn check(&self) -> Result<(), &'static str> {
        let is_held = self.sets_limit();
        let hold = Controller::new(&self.policy.0).pace().hold;
        match () {
            () if self.cgroups.is_empty() && self.pids.is_empty() => {
                Err("applies to nothing: give it cgroups or pids")
            }
            () if hold.is_some_and(|hold| hold.order == Order::Worst) => {
                Err("has by=worst, which evicts what is needed most: it is for tests in the lab")
            }
            () if is_held && !self.pids.is_empty() => Err("has pids: only a cgroup has a limit"),
            () if !self.files => Ok(()),
            () if !self.pids.is_empty() => {
                Err("has files = true and has pids: file memory is charged to cgroups")
            }
            () if is_held => Err(
                "has files = true, but only sets a limit, and the kernel selects \
                 what leaves: remove files",
            ),
            () => Ok(()),
        }
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    #[error("{} is not a regular file: give the path of one", path.display())]
    NoFile { path: PathBuf },
    #[error(
        "{} could not be read within {} s: its file system does not answer; try again when it does",
        path.display(), patience.as_secs_f64()
    )]
    Slow {
        path: PathBuf,
        /// How long the daemon waited.
        patience: Duration,
    },
    #[error("{} is larger than 1 MiB, too large for a configuration", path.display())]
    TooLarge { path: PathBuf },
    /// Its content is invalid; the message states line and key.
    #[error("{}: {message}", path.display())]
    Invalid {
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    #[error("{key}: {}: {why}", path.display())]
    Place {
        key: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
}

impl Config {
    /// Reads and checks the text of a configuration.
    ///
    /// # Errors
    /// What is wrong, with line and key if it concerns one key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Config =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        config.check()?;
        Ok(config)
    }

    /// Checks that involve more than one key.
    fn check(&self) -> Result<(), String> {
        if self.act.len() > RULES_MAX {
            return Err(format!(
                "act: {} rules, at most {RULES_MAX}",
                self.act.len()
            ));
        }
        for (number, act) in (1..).zip(&self.act) {
            let wrong = |what| format!("act: rule {number} (policy = \"{}\") {what}", act.policy);
            act.check().map_err(wrong)?;
        }
        if self.protect.up_to != UpTo::Report && self.protect.cgroups.is_empty() {
            return Err(
                "protect.up_to: nothing is protected: list the cgroups in protect.cgroups"
                    .to_owned(),
            );
        }
        let mut pids = self.act.iter().flat_map(|act| &act.pids);
        let mut pids = self.observe.pids.iter().chain(&mut pids);
        if let Some(pid) = pids.find(|pid| !is_pid(**pid)) {
            return Err(format!("pids: {}", ProcessError::InvalidPid { pid: *pid }));
        }
        self.check_paths()?;
        let protect = &self.protect;
        let lists = [&protect.cgroups, &protect.spare, &protect.at_limit]
            .into_iter()
            .chain([&self.observe.cgroups])
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
                 metrics.allow_remote = true if that is intended"
            ));
        }
        // No single pattern shows whether all of them together can be compiled.
        Matcher::new(self)
            .map(drop)
            .map_err(|error| format!("cgroups: the patterns are too large together: {error}"))
    }

    fn check_paths(&self) -> Result<(), String> {
        let no_file = |path: &&PathBuf| !path.is_absolute() || path.file_name().is_none();
        if let Some(path) = self.protect.ledger.as_ref().filter(no_file) {
            return Err(format!(
                "protect.ledger: '{}' is not an absolute path of a file",
                path.display()
            ));
        }
        let journal = &self.journal.file;
        if journal.file_name().is_none() {
            return Err(format!(
                "journal.file: '{}' is not the path of a file: give one, or - for standard output",
                journal.display()
            ));
        }
        if self.files.directory.file_name().is_none() {
            return Err(format!(
                "files.directory: '{}' is not the path of a directory that can be created",
                self.files.directory.display()
            ));
        }
        let is_prom = |path: &&PathBuf| {
            path.is_absolute() && path.extension().is_some_and(|end| end == "prom")
        };
        if let Some(path) = self.metrics.textfile.as_ref().filter(|path| !is_prom(path)) {
            return Err(format!(
                "metrics.textfile: '{}' is not an absolute path that ends with .prom, which is \
                 what node_exporter reads",
                path.display()
            ));
        }
        Ok(())
    }

    /// Whether ticks follow the page cache: because it is requested, or because a rule needs it.
    pub fn follows_files(&self) -> bool {
        self.observe.files || self.act.iter().any(|act| act.files && !act.is_held_ahead())
    }

    /// The schema of the file (JSON Schema 2020-12).
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Config).to_value()
    }
}

#[cfg(test)]
mod tests;
