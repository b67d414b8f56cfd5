// SPDX-License-Identifier: Apache-2.0
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::request::{HEAD_MAX_BYTES, Parsed, parse};
use super::*;

/// Answers with the request; `/large` is larger than any socket's buffer.
struct Echo;

impl Answer for Echo {
    fn answer(&mut self, request: &Request) -> Response {
        if request.path == "/large" {
            return Response::ok("text/plain", vec![b'x'; 8 << 20]);
        }
        if request.path == "/privileges" {
            let mine = caps::read(None, CapSet::Permitted).unwrap();
            return Response::plain(200, &mine.len().to_string());
        }
        Response::plain(200, &format!("{} {}", request.path, request.query))
    }
}

fn tcp() -> (Server, SocketAddr) {
    let listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = Listener::bind(&listen, false, 0o600).unwrap();
    let hosts = Hosts {
        any: false,
        names: vec!["web.example".to_owned()],
    };
    let server = Server::start(listener, hosts, Echo).unwrap();
    let address = server.address().unwrap();
    (server, address)
}

fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    // The server may have answered and closed before everything was sent.
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn status(answer: &str) -> u16 {
    let code = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    code.and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn good_requests_are_answered() {
    let (_server, address) = tcp();
    let get = ask(address, b"GET /a?b=c HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
    assert_eq!(status(&get), 200);
    assert!(get.ends_with("\r\n\r\n/a b=c\n"), "{get}");
    assert!(get.contains("Content-Length: 7\r\n") && get.contains("default-src 'none'"));
    let head = ask(address, b"HEAD /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("Content-Length: 4\r\n"));
    // An unrequested body does not cost the client its answer.
    let mut long = b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 300000\r\n\r\n".to_vec();
    long.resize(300_000, b'x');
    assert_eq!(status(&ask(address, &long)), 200);
}

#[test]
fn who_answers_has_no_privileges() {
    let (_server, address) = tcp();
    let answer = ask(
        address,
        b"GET /privileges HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    assert!(answer.ends_with("\r\n\r\n0\n"), "{answer}");
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let (_server, address) = tcp();
    let huge = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "A: b\r\n".repeat(70)
    );
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(5000)
    );
    for (bytes, wanted) in [
        ("POST /reclaim HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (
            "GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n",
            421,
        ),
        ("GET / HTTP/1.1\r\nHost: localhost:port\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: WEB.example:9779\r\n\r\n", 200),
        (
            "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        ("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        ("\u{1}\u{2}\u{3}\r\n\r\n", 400),
        (huge.as_str(), 431),
        (many.as_str(), 431),
        (long.as_str(), 414),
    ] {
        let answer = ask(address, bytes.as_bytes());
        let first = bytes.lines().next().unwrap_or_default();
        assert_eq!(status(&answer), wanted, "{first}: {answer}");
        assert_eq!(answer.contains("Allow: GET, HEAD"), wanted == 405);
    }
}

/// More requests, by the status of their answers.
const ODD: &[(u16, &[&str])] = &[
    (
        200,
        &[
            "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET //evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.1\nHost: localhost\n\n",
            "GET / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        ],
    ),
    (
        400,
        &[
            "GET * HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET /\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: local\u{0}host\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n",
            "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}|\u{3}\u{3}\r\n\r\n",
        ],
    ),
    (
        405,
        &[
            "PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "PATCH / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "get / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nkill",
        ],
    ),
    (
        421,
        &[
            "GET / HTTP/1.1\r\nHost: user@localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost:99999\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost:+80\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: \r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [evil.example]\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost.\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost, evil\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 2130706433\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n",
        ],
    ),
    (
        505,
        &[
            "GET / HTTP/0.9\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.2\r\nHost: localhost\r\n\r\n",
            "GET / http/1.1\r\nHost: localhost\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ],
    ),
];

#[test]
fn odd_requests_get_the_right_answer() {
    let (_server, address) = tcp();
    for (wanted, requests) in ODD {
        for request in *requests {
            let answer = ask(address, request.as_bytes());
            assert_eq!(status(&answer), *wanted, "{request:?}: {answer}");
        }
    }
}

#[test]
fn slow_clients_cost_nobody_else_anything() {
    let (_server, address) = tcp();
    // More of them than there is room for: half a request, nothing at all, and an answer that is
    // never read.
    let mut slow = Vec::new();
    for at in 0..CONNECTIONS_MAX * 2 {
        let mut stream = TcpStream::connect(address).unwrap();
        let part: &[u8] = match at % 3 {
            0 => b"GET / HTTP/1.1\r\nHo",
            1 => b"",
            _ => b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        let _ = stream.write_all(part);
        slow.push(stream);
        if at % 8 == 0 {
            let began = Instant::now();
            let answer = ask(address, b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(status(&answer), 200);
            assert!(
                began.elapsed() < Duration::from_secs(4),
                "{:?}",
                began.elapsed()
            );
        }
    }
    // Half a request also gets an answer in the end.
    drop(slow);
    let answer = ask(address, b"GET /a HTTP/1.1\r\n");
    assert_eq!(status(&answer), 408, "{answer}");
}

#[test]
fn a_large_answer_arrives_whole_and_a_client_that_leaves_does_no_harm() {
    let (_server, address) = tcp();
    let request = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for _ in 0..10 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let _ = stream.read(&mut [0u8; 100]);
        let _ = stream.shutdown(Shutdown::Both);
    }
    let answer = ask(address, request);
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(body.len(), 8 << 20);
}

#[test]
fn a_port_in_use_and_one_that_others_reach_are_refused() {
    let (_server, address) = tcp();
    let taken = Listener::bind(&Listen::Tcp(address), false, 0o600);
    let text = taken.unwrap_err().to_string();
    assert!(
        text.contains("in use") && text.contains(&address.to_string()),
        "{text}"
    );
    let everywhere = Listen::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let refused = Listener::bind(&everywhere, false, 0o600);
    assert!(refused.unwrap_err().to_string().contains("allow_remote"));
    assert!(Listener::bind(&everywhere, true, 0o600).is_ok());
}

#[test]
fn a_socket_has_its_mode_whatever_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    for wanted in [0o600, 0o660, 0o666] {
        let _listener = Listener::bind(&Listen::Unix(path.clone()), false, wanted).unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, wanted);
    }
}

#[test]
fn a_socket_is_ours_alone_replaced_when_stale_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let listen = Listen::Unix(path.clone());
    let bind = || Listener::bind(&listen, false, 0o600);
    // A socket that a killed daemon left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let hosts = Hosts {
        any: true,
        ..Hosts::default()
    };
    let server = Server::start(bind().unwrap(), hosts, Echo).unwrap();
    let mode = std::fs::symlink_metadata(&path)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(bind(), Err(ServeError::InUse { .. })));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream
        .write_all(b"GET /a HTTP/1.1\r\nHost: whatever\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 200);
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(), Err(ServeError::NoSocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_refused_or_waited_for(
        bytes in prop::collection::vec(any::<u8>(), 0..HEAD_MAX_BYTES),
        any_host in any::<bool>(),
    ) {
        let hosts = Hosts { any: any_host, names: Vec::new() };
        if let Parsed::Refused(response) = parse(&bytes, &hosts) {
            prop_assert!((400..600).contains(&response.status));
        }
    }

    /// Heads that look plausible: any that is accepted is for one of our hosts, and its path begins
    /// with a slash.
    #[test]
    fn what_passes_is_for_us(
        method in "GET|HEAD|POST|get|[A-Z]{0,9}",
        target in "/?[!-~]{0,40}",
        host in "localhost|127.0.0.1(:[0-9]{0,6})?|\\[::1\\](:80)?|[ -~]{0,30}",
        field in "[A-Za-z-]{1,10}",
        value in "[ -~\t]{0,40}",
    ) {
        let fields = format!("Host: {host}\r\n{field}: {value}\r\n");
        let head = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n");
        match parse(head.as_bytes(), &Hosts::default()) {
            Parsed::Complete(request) => {
                prop_assert!(request.path.starts_with('/'));
                prop_assert!(!request.path.contains('?'));
                prop_assert!(method == "GET" || method == "HEAD");
                let name = host.trim().rsplit_once(':').map_or(host.trim(), |(name, _)| name);
                let name = if host.contains('[') { "::1" } else { name };
                prop_assert!(
                    name.eq_ignore_ascii_case("localhost")
                        || name.parse::<std::net::IpAddr>().is_ok(),
                    "{}", host);
                let _ = request.parameter("target");
            }
            Parsed::Incomplete => prop_assert!(false, "a whole head is not incomplete"),
            Parsed::Refused(_) => {}
        }
        // Cut at the end, it is never taken for a complete one.
        let cut = &head.as_bytes()[..head.len() - 1];
        prop_assert!(!matches!(parse(cut, &Hosts::default()), Parsed::Complete(_)));
    }
}
