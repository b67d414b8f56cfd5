// SPDX-License-Identifier: Apache-2.0
//! One connection: reads a request, writes its answer, and discards for a moment what the client
//! still sends, because closing a socket with unread data would also discard the answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::request::{HEAD_MAX_BYTES, Hosts, Parsed, parse};
use super::{Answer, Response};

/// A request that has not arrived after this time is refused.
const READ_MAX: Duration = Duration::from_secs(5);
/// A client that has not accepted the answer after this time is disconnected.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// Data after the answer is discarded for this long, and up to this many bytes.
const DRAIN_MAX: Duration = Duration::from_secs(1);
const DRAIN_MAX_BYTES: usize = 1 << 20;

/// How a connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Try again when its socket is ready.
    Wait,
    Close,
}

#[derive(Debug)]
enum Phase {
    Read(Vec<u8>),
    Write {
        head: Vec<u8>,
        body: Arc<[u8]>,
        sent: usize,
    },
    Drain {
        swallowed: usize,
    },
}

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    phase: Phase,
    deadline: Instant,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, now: Instant) -> Self {
        Connection {
            socket,
            phase: Phase::Read(Vec::new()),
            deadline: now + READ_MAX,
        }
    }

    /// When its time ends.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn waits_for(&self) -> PollFlags {
        match self.phase {
            Phase::Write { .. } => PollFlags::OUT,
            Phase::Read(_) | Phase::Drain { .. } => PollFlags::IN,
        }
    }

    /// Whether it may stay. Half a request gets an answer.
    pub(super) fn keeps_time(&mut self, now: Instant) -> bool {
        if now < self.deadline {
            return true;
        }
        match &self.phase {
            Phase::Read(bytes) if !bytes.is_empty() => {
                self.respond(
                    now,
                    &Response::plain(408, "the request took too long"),
                    false,
                );
                self.write(now) == Progress::Wait
            }
            _ => false,
        }
    }

    /// Does whatever is possible without waiting.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        hosts: &Hosts,
        answer: &mut impl Answer,
    ) -> Progress {
        match self.phase {
            Phase::Read(_) => self.read(now, hosts, answer),
            Phase::Write { .. } => self.write(now),
            Phase::Drain { .. } => self.drain(),
        }
    }

    fn read(&mut self, now: Instant, hosts: &Hosts, answer: &mut impl Answer) -> Progress {
        let Phase::Read(bytes) = &mut self.phase else {
            return Progress::Close;
        };
        let mut buffer = [0u8; 2048];
        loop {
            let room = (HEAD_MAX_BYTES - bytes.len()).min(buffer.len());
            match rustix::io::read(&self.socket, &mut buffer[..room]) {
                Ok(0) => return Progress::Close,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Progress::Wait,
                Err(_) => return Progress::Close,
            }
            match parse(bytes, hosts) {
                Parsed::Incomplete => {}
                Parsed::Complete(request) => {
                    let response = answer.answer(&request);
                    self.respond(now, &response, request.is_head);
                    return self.write(now);
                }
                Parsed::Refused(response) => {
                    self.respond(now, &response, false);
                    return self.write(now);
                }
            }
        }
    }

    fn respond(&mut self, now: Instant, response: &Response, is_head: bool) {
        let body = if is_head {
            Arc::from([])
        } else {
            Arc::clone(&response.body)
        };
        self.phase = Phase::Write {
            head: head(response).into_bytes(),
            body,
            sent: 0,
        };
        self.deadline = now + WRITE_MAX;
    }

    fn write(&mut self, now: Instant) -> Progress {
        let Phase::Write { head, body, sent } = &mut self.phase else {
            return Progress::Close;
        };
        loop {
            let rest = match sent.checked_sub(head.len()) {
                None => &head[*sent..],
                Some(at) => &body[at..],
            };
            if rest.is_empty() {
                break;
            }
            // A client that has gone must not cause a signal.
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => *sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return Progress::Wait,
                Err(_) => return Progress::Close,
            }
        }
        if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
            return Progress::Close;
        }
        self.phase = Phase::Drain { swallowed: 0 };
        self.deadline = now + DRAIN_MAX;
        self.drain()
    }

    fn drain(&mut self) -> Progress {
        let Phase::Drain { swallowed } = &mut self.phase else {
            return Progress::Close;
        };
        let mut buffer = [0u8; 4096];
        while *swallowed < DRAIN_MAX_BYTES {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Progress::Close,
                Ok(count) => *swallowed += count,
                Err(Errno::AGAIN | Errno::INTR) => return Progress::Wait,
                Err(_) => return Progress::Close,
            }
        }
        Progress::Close
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// The head of an answer. It tells the browser to run and load nothing from elsewhere, to show the
/// answer in no other page, and to reveal nothing to other sites.
pub(super) fn head(response: &Response) -> String {
    let status = response.status;
    let allow = if status == 405 {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 {status} {}\r\n\
         Content-Type: {}\r\n\
         Content-Length: {}\r\n\
         Connection: close\r\n\
         Cache-Control: no-store\r\n\
         {allow}\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
         img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'\r\n\
         X-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\n\
         Cross-Origin-Opener-Policy: same-origin\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n\
         Referrer-Policy: no-referrer\r\n\
         \r\n",
        phrase(status),
        response.media_type,
        response.body.len(),
    )
}
