// SPDX-License-Identifier: Apache-2.0
//! A load generator for key-value servers: a closed loop over some connections, keys drawn from a
//! distribution, values that are half compressible.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use agewise_policy::mix::hash;
use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::postgres;

/// Connections, each with one request at a time.
const CONNECTIONS: usize = 8;
/// Percentage of operations that write.
const WRITES_PERCENT: u32 = 5;
/// Size of a value in bytes.
pub const VALUE_BYTES: usize = 1000;
/// Error message if the server has exited.
const WENT: &str =
    "the server went away; at a limit the kernel's OOM killer may end it (dmesg says)";
/// Size of the text from which values are cut.
const POOL_BYTES: usize = 1 << 20;

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// All equally likely.
    Uniform,
    /// Zipf 0.99, with ranks unrelated to the order in memory.
    Zipf,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dialect {
    /// That of redis.
    Resp,
    /// The text protocol of memcached.
    Memcached,
    /// That of PostgreSQL.
    Postgres,
}

impl Dialect {
    fn get(self, key: &str, request: &mut Vec<u8>) {
        let text = match self {
            Dialect::Resp => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
            Dialect::Memcached => format!("get {key}\r\n"),
            Dialect::Postgres => return postgres::get(key, request),
        };
        request.extend_from_slice(text.as_bytes());
    }

    fn set(self, key: &str, value: &[u8], request: &mut Vec<u8>) {
        let (of_key, of_value) = (key.len(), value.len());
        let head = match self {
            Dialect::Resp => {
                format!("*3\r\n$3\r\nSET\r\n${of_key}\r\n{key}\r\n${of_value}\r\n")
            }
            Dialect::Memcached => format!("set {key} 0 0 {of_value}\r\n"),
            Dialect::Postgres => return postgres::set(key, value, request),
        };
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }

    /// Whether an answer is complete.
    fn is_whole(self, answer: &[u8]) -> anyhow::Result<bool> {
        if self == Dialect::Postgres {
            return postgres::is_whole(answer);
        }
        let Some(end) = answer.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(false);
        };
        let line = std::str::from_utf8(&answer[..end]).unwrap_or("");
        // Checks for a value of this length and the bytes after it.
        let has_value = |length: Option<usize>, after: usize| match length {
            Some(length) => Ok(answer.len() - end >= after && answer.len() - end - after >= length),
            None => bail!("the server said {line:?}"),
        };
        match (self, line) {
            (Dialect::Resp, "$-1") | (Dialect::Memcached, "END") => {
                bail!("the server has lost a key")
            }
            (Dialect::Resp, line) if line.starts_with('+') => Ok(true),
            (Dialect::Resp, line) if line.starts_with('$') => has_value(line[1..].parse().ok(), 4),
            (Dialect::Memcached, "STORED") => Ok(true),
            (Dialect::Memcached, line) if line.starts_with("VALUE ") => {
                let length = line
                    .rsplit(' ')
                    .next()
                    .and_then(|length| length.parse().ok());
                has_value(length, 4 + "END\r\n".len())
            }
            _ => bail!("the server said {line:?}"),
        }
    }
}

/// The result of a phase.
#[derive(Debug)]
pub struct Phase {
    /// Operations answered.
    pub operations: u64,
    /// Latency in ns.
    pub latency: Histogram<u64>,
}

struct Connection {
    stream: UnixStream,
    sent: Instant,
    answer: Vec<u8>,
}

/// The load generator.
pub struct Keys {
    dialect: Dialect,
    connections: Vec<Connection>,
    pool: Vec<u8>,
    rng: Pcg64,
}

impl Keys {
    /// Connects to the server.
    pub fn connect(socket: &Path, dialect: Dialect, seed: u64) -> anyhow::Result<Self> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut pool = vec![0; POOL_BYTES + VALUE_BYTES];
        for (at, byte) in pool.iter_mut().enumerate() {
            let text = b"the quick brown fox jumps over a"[at % 32];
            *byte = if at / 64 % 2 == 0 { text } else { rng.random() };
        }
        let connections = (0..CONNECTIONS)
            .map(|_| {
                let stream = UnixStream::connect(socket).context("the server does not answer")?;
                Ok(Connection {
                    stream,
                    sent: Instant::now(),
                    answer: Vec::new(),
                })
            })
            .collect::<anyhow::Result<_>>()?;
        let mut keys = Keys {
            dialect,
            connections,
            pool,
            rng,
        };
        if dialect == Dialect::Postgres {
            keys.greet()?;
        }
        Ok(keys)
    }

    /// Sends PostgreSQL the startup message on every connection, and creates the table once.
    fn greet(&mut self) -> anyhow::Result<()> {
        let stop = AtomicBool::new(false);
        // All connections are ready at first, so each in turn gets one greeting.
        let count = self.connections.len() as u64;
        self.drive(count, &stop, |_, request| postgres::greeting(request))?;
        self.drive(1, &stop, |_, request| {
            postgres::query(postgres::TABLE, request)
        })?;
        Ok(())
    }

    /// Sets keys `0..count`, in order.
    pub fn load(&mut self, count: u64, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut next = 0;
        self.drive(count, stop, |keys, request| {
            let key = next;
            next += 1;
            keys.set(key, request);
        })
        .map(|_| ())
    }

    /// Runs `operations` on keys in `keys`, chosen by `choice`.
    pub fn run(
        &mut self,
        operations: u64,
        keys: std::ops::Range<u64>,
        choice: Choice,
        stop: &AtomicBool,
    ) -> anyhow::Result<Phase> {
        let count = keys.end - keys.start;
        let zipf = Zipf::new(count as f64, 0.99).context("there are keys")?;
        self.drive(operations, stop, |this, request| {
            let rank = match choice {
                Choice::Uniform => this.rng.random_range(0..count),
                Choice::Zipf => hash(zipf.sample(&mut this.rng) as u64) % count,
            };
            let key = keys.start + rank;
            if this.rng.random_range(0..100) < WRITES_PERCENT {
                this.set(key, request);
            } else {
                this.dialect.get(&format!("key-{key:012}"), request);
            }
        })
    }

    fn set(&mut self, key: u64, request: &mut Vec<u8>) {
        let at = self.rng.random_range(0..POOL_BYTES);
        let value = &self.pool[at..at + VALUE_BYTES];
        self.dialect.set(&format!("key-{key:012}"), value, request);
    }

    /// Keeps one request pending on each connection until `operations` were answered or the run is
    /// interrupted.
    fn drive(
        &mut self,
        operations: u64,
        stop: &AtomicBool,
        mut make: impl FnMut(&mut Self, &mut Vec<u8>),
    ) -> anyhow::Result<Phase> {
        let mut latency = Histogram::new_with_bounds(100, 60_000_000_000, 3)?;
        let (mut sent, mut answered) = (0, 0);
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        let mut ready: Vec<usize> = (0..self.connections.len()).collect();
        while answered < operations {
            for at in ready.drain(..) {
                if sent == operations {
                    continue;
                }
                request.clear();
                make(self, &mut request);
                let connection = &mut self.connections[at];
                connection.sent = Instant::now();
                connection.stream.write_all(&request)?;
                sent += 1;
            }
            let mut fds: Vec<PollFd<'_>> = self
                .connections
                .iter()
                .map(|connection| PollFd::new(&connection.stream, PollFlags::IN))
                .collect();
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (at, _) in readable.iter().enumerate().filter(|(_, is)| **is) {
                let connection = &mut self.connections[at];
                let read = connection.stream.read(&mut buffer).context(WENT)?;
                ensure!(read > 0, WENT);
                connection.answer.extend_from_slice(&buffer[..read]);
                if self.dialect.is_whole(&connection.answer)? {
                    connection.answer.clear();
                    let ns = connection.sent.elapsed().as_nanos();
                    latency.saturating_record(u64::try_from(ns).unwrap_or(u64::MAX));
                    answered += 1;
                    ready.push(at);
                }
            }
        }
        Ok(Phase {
            operations,
            latency,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_whole_when_all_of_them_is_there() {
        for (dialect, answer, wanted) in [
            (Dialect::Resp, "", false),
            (Dialect::Resp, "+O", false),
            (Dialect::Resp, "+OK\r\n", true),
            (Dialect::Resp, "$3\r\nab", false),
            (Dialect::Resp, "$3\r\nabc\r\n", true),
            (Dialect::Resp, "$0\r\n\r\n", true),
            (Dialect::Memcached, "STORED\r\n", true),
            (Dialect::Memcached, "VALUE a 0 3\r\nabc\r\nEND\r", false),
            (Dialect::Memcached, "VALUE a 0 3\r\nabc\r\nEND\r\n", true),
        ] {
            let whole = dialect.is_whole(answer.as_bytes()).unwrap();
            assert_eq!(whole, wanted, "{answer:?}");
        }
        for (dialect, wrong) in [
            (Dialect::Resp, "-ERR no\r\n"),
            (Dialect::Resp, "$-1\r\n"),
            (Dialect::Resp, "$x\r\n"),
            (Dialect::Resp, "?\r\n"),
            (Dialect::Memcached, "END\r\n"),
            (Dialect::Memcached, "VALUE a 0 x\r\n"),
            (Dialect::Memcached, "ERROR\r\n"),
        ] {
            assert!(dialect.is_whole(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_whole_or_not(answer in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Dialect::Resp.is_whole(&answer);
            let _ = Dialect::Memcached.is_whole(&answer);
        }
    }
}
