// SPDX-License-Identifier: Apache-2.0
//! The subcommands, one per file: arguments and implementation. A new subcommand needs a file and a
//! line in each of the two lists below (rustfmt does not find modules declared by a macro).

pub mod completions;
pub mod config;
pub mod daemon;
#[cfg(feature = "bench")]
pub mod demo;
pub mod doctor;
pub mod files;
#[cfg(feature = "lab")]
pub mod lab;
pub mod man;
pub mod reclaim;
pub mod recommend;
pub mod report;
pub mod run;
pub mod shrink;
pub mod size;
pub mod sort;
pub mod trace;
pub mod watch;
pub mod whatif;

/// Declares the subcommands: the name of each, and the module with its `Args` and `run`.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident => $($module:ident)::+;)+) => {
        /// The subcommands. What each is for is documented on its arguments.
        #[derive(Debug, clap::Subcommand)]
        #[allow(missing_docs)] // a comment here would hide the help that each `Args` carries
        pub enum Command {
            $($(#[$attribute])* $name($($module)::+::Args),)+
        }

        impl Command {
            /// Runs the subcommand.
            ///
            /// # Errors
            /// Those of the subcommand.
            pub fn run(&self) -> anyhow::Result<std::process::ExitCode> {
                match self {
                    $($(#[$attribute])* Command::$name(args) => $($module)::+::run(args),)+
                }
            }
        }
    };
}
use commands;

commands! {
    #[cfg(feature = "bench")]
    Bench => agewise_bench;
    Completions => completions;
    Config => config;
    Daemon => daemon;
    #[cfg(feature = "bench")]
    Demo => demo;
    Doctor => doctor;
    #[cfg(feature = "bench")]
    Exercise => agewise_bench::exercise;
    Files => files;
    #[cfg(feature = "lab")]
    Lab => lab;
    Man => man;
    Reclaim => reclaim;
    Recommend => recommend;
    Report => report;
    Run => run;
    Shrink => shrink;
    Size => size;
    Sort => sort;
    Trace => trace;
    Watch => watch;
    Whatif => whatif;
}
