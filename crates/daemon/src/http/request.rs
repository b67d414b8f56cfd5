// SPDX-License-Identifier: Apache-2.0
//! Requests: what is read of them, and which are refused without asking for an answer.

use std::net::{IpAddr, Ipv6Addr};

use super::Response;

/// A longer head is refused: no legitimate client sends one.
pub(super) const HEAD_MAX_BYTES: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const TARGET_MAX_BYTES: usize = 4 << 10;

/// The parts of a checked request that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Whether only the head of the answer is requested.
    pub is_head: bool,
    /// The path, as received.
    pub path: String,
    /// The part after the question mark.
    pub query: String,
    /// What the client accepts, as received.
    pub accept: String,
}

impl Request {
    /// The decoded value of a query parameter; the first one with that name.
    pub fn parameter(&self, name: &str) -> Option<String> {
        form_urlencoded::parse(self.query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }
}

/// The host names that requests may be for.
///
/// A page of another site cannot read our answers, unless its name is made to resolve to our
/// address (DNS rebinding). The browser still sends that name then, so such requests can be
/// detected.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// Accept any name: browsers cannot reach a socket in the file system.
    pub any: bool,
    /// Names in addition to `localhost` and bare addresses.
    pub names: Vec<String>,
}

impl Hosts {
    fn is_ours(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => {
                return is_port(port) && address.parse::<Ipv6Addr>().is_ok();
            }
            None => match host.split_once(':') {
                Some((name, port)) if is_port(&format!(":{port}")) => name,
                Some(_) => return false,
                None => host,
            },
        };
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok() && !port.starts_with('+'))
}

/// What the bytes received so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// An incomplete request.
    Incomplete,
    /// A request to answer.
    Complete(Request),
    /// A request to refuse; it is unknown whether only the head is requested.
    Refused(Response),
}

fn refuse(status: u16, text: &str) -> Parsed {
    Parsed::Refused(Response::plain(status, text))
}

/// Parses a head; `bytes` are at most [`HEAD_MAX_BYTES`].
pub(super) fn parse(bytes: &[u8], hosts: &Hosts) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => check(&head, hosts),
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_MAX_BYTES => refuse(
            431,
            &format!("a request head of more than {HEAD_MAX_BYTES} bytes"),
        ),
        Ok(httparse::Status::Partial) => Parsed::Incomplete,
        Err(httparse::Error::TooManyHeaders) => {
            refuse(431, &format!("more than {HEADERS_MAX} header fields"))
        }
        Err(httparse::Error::Version) => refuse(505, "HTTP/1.0 or HTTP/1.1, please"),
        Err(error) => refuse(400, &format!("not a request: {error}")),
    }
}

fn check(head: &httparse::Request, hosts: &Hosts) -> Parsed {
    let method = head.method.unwrap_or_default();
    let target = head.path.unwrap_or_default();
    let values = |name: &str| -> Vec<&[u8]> {
        let named = head
            .headers
            .iter()
            .filter(|h| h.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value).collect()
    };
    match values("host")[..] {
        [host] => {
            if !std::str::from_utf8(host).is_ok_and(|host| hosts.is_ours(host.trim())) {
                return refuse(
                    421,
                    "this host name is not known here: ask by address or localhost, or name it in \
                     metrics.hosts",
                );
            }
        }
        [] if head.version == Some(0) && hosts.any => {}
        _ => return refuse(400, "a request needs one Host"),
    }
    if !matches!(method, "GET" | "HEAD") {
        return refuse(405, "GET and HEAD only: nothing can be changed here");
    }
    if target.len() > TARGET_MAX_BYTES {
        return refuse(414, "too long an address");
    }
    if !target.starts_with('/') {
        return refuse(400, "the address begins with /");
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let accept: Vec<_> = values("accept")
        .into_iter()
        .map(String::from_utf8_lossy)
        .collect();
    Parsed::Complete(Request {
        is_head: method == "HEAD",
        path: path.to_owned(),
        query: query.to_owned(),
        accept: accept.join(","),
    })
}
