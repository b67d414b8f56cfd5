// SPDX-License-Identifier: Apache-2.0
//! `agewise watch`: the age of memory in a terminal, live.

mod bar;
mod curve;
mod draw;
mod files;
mod followed;
mod guard;
mod sample;
mod view;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;
use agewise_host::container::Containers;
use agewise_host::root::ProcRoot;
use agewise_policy::workingset::Intervals;
use crossterm::event::{self, Event, KeyEventKind};
use rustix::termios::{OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::SIGHUP;

use agewise_cli::observe::{self, AgeArgs, ScanInterval, Unseen};
use agewise_cli::prices::{Costs, costs};
use agewise_cli::signal::{Stop, Woken};
use files::Files;
use followed::{Followed, Of};
use guard::Guard;
use view::{Outcome, View};

/// Watch how old memory is, live, in the terminal
///
/// Shows cgroups or processes with a bar of the ages of their memory: what was accessed just now on
/// the left, what has been idle for long on the right. Enter opens a cgroup to show its processes,
/// and a process to show its mappings. Press ? for the keys.
///
/// w shows how fast the selected line would be with less memory, as `agewise whatif` does. It is
/// simulated from then on using the looks that are made anyway; the first ten only learn which
/// pages are where. No memory is taken from it. Containers and pods are shown by their names.
///
/// f shows the files of the selected line that have the most memory: what is resident, dirty and
/// how old. Of a cgroup these are the files whose pages are charged to it, of a process those that
/// it has open or mapped. Without --files the page cache is followed from then on, for this list
/// only, and accesses through mappings are not seen (as in `agewise files`). This needs root and
/// Linux 6.1 or later.
///
/// Without --pid or --cgroup it watches every cgroup of the machine. It looks at all memory as
/// often as the narrowest bin needs; wider bins cost less.
///
/// NO_COLOR is respected: bins then differ by their pattern. To record ages rather than look at
/// them, use `agewise report --follow`.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A process; may be given several times, or as a list.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,

    /// A memory cgroup with all cgroups below it.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = observe::cgroup_path())]
    cgroup: Vec<String>,

    /// Without --pid or --cgroup: list cgroups separately down to this many levels.
    #[arg(long, value_name = "LEVELS", default_value_t = 5)]
    #[arg(conflicts_with_all = ["pid", "cgroup"])]
    depth: usize,

    /// Count all file memory of cgroups, mapped or not, for the cgroup it is charged to, like
    /// `agewise report --files`.
    #[arg(long, conflicts_with = "pid")]
    files: bool,

    /// Upper bounds of the age bins, increasing, at most 31.
    #[arg(long, value_name = "LIST", default_value = "2s,10s,1m,5m,30m")]
    intervals: Intervals,

    /// Clear every accessed bit at every look: single pages and small mappings are exact, at more
    /// than twice the cost.
    #[arg(long)]
    exact: bool,

    /// Spend at most this much of one core on clearing accessed bits, in percent; memory then takes
    /// turns.
    #[arg(long, value_name = "PERCENT", value_parser = observe::percent, conflicts_with = "exact")]
    cpu_limit: Option<f64>,
}

/// Runs the command.
///
/// # Errors
/// Standard output is not a terminal, a target does not exist, or privileges are missing.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "watch needs a terminal; `agewise report --follow 5s` prints the same"
    );
    // The kernel would stop it as soon as it touches the terminal, and again after each signal that
    // should end it.
    anyhow::ensure!(
        has_terminal(),
        "watch needs the terminal to itself, and another program has it: start it in the \
         foreground (with timeout: timeout --foreground)"
    );
    let targets = if args.pid.is_empty() && args.cgroup.is_empty() {
        observe::all_cgroups(args.depth)?
    } else {
        observe::listed(&args.pid, &args.cgroup)?
    };
    let ages = AgeArgs {
        intervals: args.intervals.clone(),
        scan_interval: ScanInterval::Auto,
        unseen: Unseen::AtLeast,
        exact: args.exact,
        cpu_limit: args.cpu_limit,
    };
    let config = ages.config(Duration::from_secs(60));
    let (mut agent, note) = observe::open_agent(targets, config)?;
    if args.files {
        observe::follow_files(&mut agent)?;
    }
    let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = View::new(has_color, !args.pid.is_empty() && args.cgroup.is_empty());
    view.note = note;
    let stop = Stop::install()?;
    // This also restores the terminal on a panic.
    let mut terminal = ratatui::try_init()?;
    let guard = Guard::set(&stop)?;
    let ended = watch(&mut agent, &mut view, &stop, &mut terminal);
    let restored = terminal.show_cursor().and_then(|()| ratatui::try_restore());
    drop(guard);
    if restored.is_err() {
        // Dropping it would print an error to a terminal that is gone, and panic.
        std::mem::forget(terminal);
        if stop.requested().is_none() {
            stop.request().end(SIGHUP);
        }
    }
    if stop.requested().is_none() {
        ended?;
    }
    Ok(stop.requested().map_or(ExitCode::SUCCESS, |signal| {
        ExitCode::from(Stop::exit_code(signal))
    }))
}

/// Whether this process may use its terminal now. One that is not its controlling terminal may
/// always be used.
fn has_terminal() -> bool {
    let owner = tcgetpgrp(std::io::stdin());
    owner.map_or(true, |owner| owner == rustix::process::getpgrp())
}

/// Longest delay before a resize of the terminal is noticed.
const POLL: Duration = Duration::from_millis(200);

fn watch(
    agent: &mut Agent,
    view: &mut View,
    stop: &Stop,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let interval = Duration::from_millis(agent.config().scan_interval_ms());
    let mut next_tick = Instant::now();
    let mut last_interim = next_tick;
    let mut names = Containers::new(&ProcRoot::default());
    let mut curve = Curve::default();
    let mut files = Files::default();
    while stop.requested().is_none() {
        if Instant::now() >= next_tick {
            // Tick even while the display is paused: otherwise everything would look idle.
            curve.tick(agent, view)?;
            files.tick();
            next_tick = Instant::now() + interval;
            if !view.is_paused() {
                let place = view.place();
                view.show(sample::Sample::take(agent, place, &mut names, &mut files));
            }
        }
        if agent
            .interim_period()
            .is_some_and(|period| last_interim.elapsed() >= period)
        {
            agent.interim_scan();
            last_interim = Instant::now();
        }
        terminal.draw(|frame| draw::draw(frame, view))?;
        let input = std::io::stdin();
        match stop.wait_for(next_tick.min(Instant::now() + POLL), input.as_fd()) {
            Woken::Time | Woken::Signal => {}
            Woken::Gone => stop.request().end(SIGHUP),
            Woken::Readable => {
                if follow_keys(agent, view, &mut names, &mut files)? == Outcome::Quit {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The target whose what-if curve was asked for.
#[derive(Default)]
struct Curve {
    followed: Option<Followed>,
    /// Measured only once, since that takes a moment.
    costs: Option<Costs>,
}

impl Curve {
    /// Ticks once, and feeds the look to the simulation of the selected target, if any.
    fn tick(&mut self, agent: &mut Agent, view: &mut View) -> anyhow::Result<()> {
        // If one that was gone was asked for anew, there is another of its name.
        let is_new =
            |now: &Followed, of: &Of| now.of() != of || now.is_gone() && view.known.is_none();
        if let Some((of, _)) = view.asked()
            && self.followed.as_ref().is_none_or(|now| is_new(now, of))
        {
            let costs = *self.costs.get_or_insert_with(costs);
            self.followed = Some(Followed::new(of.clone(), costs));
        }
        match &mut self.followed {
            None => {
                agent.tick()?;
            }
            Some(followed) => {
                followed.tick(agent)?;
                // Computing a curve takes longer than simulating a look, so do it only if it is
                // shown.
                if view.has_curve && !view.is_paused() {
                    view.known = Some(followed.known(agent));
                }
            }
        }
        Ok(())
    }
}

/// Handles all pending keys.
fn follow_keys(
    agent: &mut Agent,
    view: &mut View,
    names: &mut Containers,
    files: &mut Files,
) -> anyhow::Result<Outcome> {
    // crossterm buffers all bytes of a read; poll on the descriptor does not see the buffered ones.
    while event::poll(Duration::ZERO)? {
        let key = match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => key,
            Event::Resize(..) => {
                report_input_again()?;
                continue;
            }
            _ => continue,
        };
        match view.key(key) {
            Outcome::Stay => {}
            Outcome::Moved => {
                let place = view.place();
                view.show(sample::Sample::take(agent, place, names, files));
            }
            Outcome::Quit => return Ok(Outcome::Quit),
        }
    }
    Ok(Outcome::Stay)
}

/// crossterm 0.29 is notified once of input, and forgets that if it learns of a resize at the same
/// time: the key would be handled with the next one, and until then the terminal would stay
/// readable. Setting a terminal's attributes wakes those who wait for it (`n_tty_set_termios`),
/// even if they are the same as before.
fn report_input_again() -> anyhow::Result<()> {
    let terminal = std::io::stdin();
    let same = tcgetattr(&terminal)?;
    Ok(tcsetattr(&terminal, OptionalActions::Now, &same)?)
}
