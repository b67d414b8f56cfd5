// SPDX-License-Identifier: Apache-2.0
//! Key-value programs, each run as a server of our own on a Unix socket: no network, and nothing
//! written to disk.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use super::group::Group;
use super::keys::{Dialect, VALUE_BYTES};
use super::postgres;
use crate::installed::is_installed;

/// What holds the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// redis-server.
    #[default]
    Redis,
    /// memcached, four threads.
    Memcached,
    /// A table of SQLite in memory, in Python.
    Sqlite,
    /// The same in a file, which is page cache.
    SqliteFile,
    /// A dictionary of Python.
    Python,
    /// PostgreSQL, a quarter of the memory in its own buffers, the rest page cache.
    Postgres,
}

/// Memory that redis takes per key besides the value; others take about as much.
const KEY_OVERHEAD_BYTES: u64 = 130;

/// The number of keys that fill this much memory.
pub fn keys_in(size_bytes: u64) -> u64 {
    size_bytes / (VALUE_BYTES as u64 + KEY_OVERHEAD_BYTES)
}

impl Program {
    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Checks whether it can run here; `Err` says why not.
    pub fn is_installed(self) -> Result<(), String> {
        match self {
            Program::Postgres => ["initdb", "postgres"]
                .into_iter()
                .try_for_each(|name| postgres::executable(name).map(|_| ())),
            _ => is_installed(self.executable()),
        }
    }

    /// The executable that must be installed.
    pub fn executable(self) -> &'static str {
        match self {
            Program::Redis => "redis-server",
            Program::Memcached => "memcached",
            Program::Sqlite | Program::SqliteFile | Program::Python => "python3",
            Program::Postgres => "postgres",
        }
    }

    /// The protocol it speaks.
    pub fn dialect(self) -> Dialect {
        match self {
            Program::Memcached => Dialect::Memcached,
            Program::Postgres => Dialect::Postgres,
            _ => Dialect::Resp,
        }
    }

    /// Whether it reads missing data through a descriptor instead of faulting it in.
    pub fn reads_files(self) -> bool {
        matches!(self, Program::Postgres | Program::SqliteFile)
    }

    fn socket(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Program::Postgres => postgres::SOCKET,
            _ => "socket",
        })
    }

    /// Whether it accepts requests.
    fn is_ready(self, directory: &Path) -> bool {
        match self {
            Program::Postgres => postgres::is_ready(directory),
            _ => self.socket(directory).exists(),
        }
    }

    /// The signal that ends it at once without leaving anything behind; PostgreSQL must free shared
    /// memory.
    fn end_signal(self) -> Signal {
        match self {
            Program::Postgres => Signal::QUIT,
            _ => Signal::KILL,
        }
    }

    fn command(self, directory: &Path, size_bytes: u64) -> anyhow::Result<Command> {
        let socket = &self.socket(directory);
        let mut command = Command::new(self.executable());
        match self {
            Program::Redis => command
                .args(["--port", "0", "--save", "", "--appendonly", "no"])
                .args(["--loglevel", "warning", "--daemonize", "no", "--unixsocket"])
                .arg(socket)
                .arg("--dir")
                .arg(directory),
            // Twice the memory of the values, so that it evicts none of them.
            Program::Memcached => command
                .args(["-u", "root", "-t", "4", "-m"])
                .arg((size_bytes >> 19).to_string())
                .arg("-s")
                .arg(socket),
            Program::Sqlite => command.args(["-c", SCRIPT, "sqlite"]).arg(socket),
            Program::SqliteFile => command.args(["-c", SCRIPT, "sqlite-file"]).arg(socket),
            Program::Python => command.args(["-c", SCRIPT, "python"]).arg(socket),
            Program::Postgres => {
                postgres::prepare(directory)?;
                return postgres::command(directory, size_bytes);
            }
        };
        Ok(command)
    }
}

/// A server for redis GET and SET, with one request at a time per connection.
const SCRIPT: &str = r#"
import selectors, socket, sys
kind, path = sys.argv[1:3]
if kind.startswith("sqlite"):
    import sqlite3
    file = ":memory:" if kind == "sqlite" else path + ".db"
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("pragma synchronous = off")
    db.execute("pragma journal_mode = memory")
    db.execute("create table pairs (key blob primary key, value blob)")
    def get(key):
        row = db.execute("select value from pairs where key = ?", (key,)).fetchone()
        return row and row[0]
    def put(key, value):
        db.execute("insert or replace into pairs values (?, ?)", (key, value))
else:
    pairs = {}
    get, put = pairs.get, pairs.__setitem__
selector = selectors.DefaultSelector()
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
selector.register(server, selectors.EVENT_READ)
requests = {}
while True:
    for ready, _ in selector.select():
        connection = ready.fileobj
        if connection is server:
            selector.register(server.accept()[0], selectors.EVENT_READ)
            continue
        data = connection.recv(65536)
        if not data:
            selector.unregister(connection)
            continue
        data = requests.pop(connection, b"") + data
        parts = data.split(b"\r\n", 6)
        if len(parts) == 6 and parts[2] == b"GET":
            value = get(parts[4])
            answer = b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
            connection.sendall(answer)
        elif len(parts) == 7 and len(parts[6]) == int(parts[5][1:]) + 2:
            put(parts[4], parts[6][:-2])
            connection.sendall(b"+OK\r\n")
        else:
            requests[connection] = data
"#;

/// A running server; killed when dropped.
pub struct Server {
    program: Program,
    child: Child,
    directory: TempDir,
}

impl Server {
    /// Starts it in a cgroup; `size_bytes` is the memory of the values.
    pub fn start(program: Program, group: &Group, size_bytes: u64) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let name = program.executable();
        let child = program
            .command(directory.path(), size_bytes)?
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{name} does not start"))?;
        let server = Server {
            program,
            child,
            directory,
        };
        group.take_in(server.pid())?;
        let began = Instant::now();
        while !program.is_ready(server.directory.path()) {
            if began.elapsed() > Duration::from_secs(20) {
                bail!("{name} did not listen within 20 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The pid of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.program.socket(self.directory.path())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.pid())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, self.program.end_signal());
        }
        let _ = self.child.wait();
    }
}
