// SPDX-License-Identifier: Apache-2.0
//! A load generator for redis: a closed loop over some connections, keys by a distribution, values
//! half of which can be compressed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use agewise_cli::signal::Stop;

/// Requests under way at a time, one a connection.
const CONNECTIONS: usize = 8;
/// Of a hundred operations so many write.
const WRITES_PERCENT: u32 = 5;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 1000;
/// Values are cut out of this much text.
const POOL_BYTES: usize = 1 << 20;

/// Which keys are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// All alike.
    Uniform,
    /// By zipf 0.99, in an order that has nothing to do with where they lie.
    Zipf,
}

/// What a phase did.
#[derive(Debug)]
pub struct Phase {
    /// Operations answered.
    pub operations: u64,
    /// Latency, ns.
    pub latency: Histogram<u64>,
}

struct Connection {
    stream: UnixStream,
    sent: Instant,
    answer: Vec<u8>,
}

/// The generator.
pub struct Keys {
    connections: Vec<Connection>,
    pool: Vec<u8>,
    rng: Pcg64,
}

impl Keys {
    /// Connects.
    pub fn connect(socket: &Path, seed: u64) -> anyhow::Result<Self> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut pool = vec![0; POOL_BYTES + VALUE_BYTES];
        for (at, byte) in pool.iter_mut().enumerate() {
            let text = b"the quick brown fox jumps over a"[at % 32];
            *byte = if at / 64 % 2 == 0 { text } else { rng.random() };
        }
        let connections = (0..CONNECTIONS)
            .map(|_| {
                let stream = UnixStream::connect(socket).context("redis does not answer")?;
                Ok(Connection {
                    stream,
                    sent: Instant::now(),
                    answer: Vec::new(),
                })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Keys {
            connections,
            pool,
            rng,
        })
    }

    /// Sets keys `0..count`, in order.
    pub fn load(&mut self, count: u64, stop: &Stop) -> anyhow::Result<()> {
        let mut next = 0;
        self.drive(count, stop, |keys, request| {
            let key = next;
            next += 1;
            keys.set(key, request);
        })
        .map(|_| ())
    }

    /// `operations` on keys of `keys`, chosen by `choice`.
    pub fn run(
        &mut self,
        operations: u64,
        keys: std::ops::Range<u64>,
        choice: Choice,
        stop: &Stop,
    ) -> anyhow::Result<Phase> {
        let count = keys.end - keys.start;
        let zipf = Zipf::new(count as f64, 0.99).context("there are keys")?;
        self.drive(operations, stop, |this, request| {
            let rank = match choice {
                Choice::Uniform => this.rng.random_range(0..count),
                Choice::Zipf => mix(zipf.sample(&mut this.rng) as u64) % count,
            };
            let key = keys.start + rank;
            if this.rng.random_range(0..100) < WRITES_PERCENT {
                this.set(key, request);
            } else {
                let key = format!("key-{key:012}");
                request.extend_from_slice(
                    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes(),
                );
            }
        })
    }

    fn set(&mut self, key: u64, request: &mut Vec<u8>) {
        let at = self.rng.random_range(0..POOL_BYTES);
        let key = format!("key-{key:012}");
        request.extend_from_slice(
            format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_BYTES}\r\n",
                key.len()
            )
            .as_bytes(),
        );
        request.extend_from_slice(&self.pool[at..at + VALUE_BYTES]);
        request.extend_from_slice(b"\r\n");
    }

    /// Keeps one request under way on each connection until `operations` were answered, or it is
    /// interrupted.
    fn drive(
        &mut self,
        operations: u64,
        stop: &Stop,
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
            ensure!(stop.requested().is_none(), "interrupted");
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (at, _) in readable.iter().enumerate().filter(|(_, is)| **is) {
                let connection = &mut self.connections[at];
                let read = connection.stream.read(&mut buffer)?;
                ensure!(read > 0, "redis closed the connection");
                connection.answer.extend_from_slice(&buffer[..read]);
                if is_whole(&connection.answer)? {
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

/// Whether an answer of redis (RESP: a status, an error or a bulk string) is complete.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(end) = answer.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(false);
    };
    let line = std::str::from_utf8(&answer[1..end]).unwrap_or("");
    match answer[0] {
        b'+' => Ok(true),
        b'$' => match line.parse::<i64>() {
            Ok(-1) => bail!("redis has lost a key"),
            Ok(length) => Ok(usize::try_from(length).is_ok_and(|l| answer.len() >= end + 4 + l)),
            Err(_) => bail!("redis said {line:?}"),
        },
        _ => bail!("redis said {line:?}"),
    }
}

/// Spreads ranks over keys.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_whole_when_all_of_them_is_there() {
        for (answer, wanted) in [
            ("", false),
            ("+O", false),
            ("+OK\r\n", true),
            ("$3\r\nab", false),
            ("$3\r\nabc\r\n", true),
            ("$0\r\n\r\n", true),
        ] {
            assert_eq!(is_whole(answer.as_bytes()).unwrap(), wanted, "{answer:?}");
        }
        for wrong in ["-ERR no\r\n", "$-1\r\n", "$x\r\n", "?\r\n"] {
            assert!(is_whole(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_whole_or_not(answer in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = is_whole(&answer);
        }
    }
}
