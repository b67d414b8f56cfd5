// SPDX-License-Identifier: Apache-2.0
//! Where metrics are sent by OTLP, and with which headers.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::read::{PATIENCE, text, within};
use super::values::textual;
use super::{ConfigError, Pause, Span};

/// What OTLP over HTTP appends to an address that has no path.
const PATH: &str = "/v1/metrics";
/// Headers and their values: a few tokens.
const HEADERS_MAX: usize = 32;
/// What the request itself determines.
const OWN_HEADERS: [&str; 6] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
];

/// Metrics are sent there by OTLP over HTTP, whether or not anything is served.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Otlp {
    /// `http://HOST:PORT`, followed by a path if it is not `/v1/metrics`.
    pub endpoint: Endpoint,
    /// They are sent after the first look, and after the first one that follows each interval.
    #[serde(default = "interval")]
    pub interval: Span,
    /// How long the answer to a request may take.
    #[serde(default = "timeout")]
    pub timeout: Pause,
    /// A file with headers to send, one `Name: value` per line. Nobody but its owner and group may
    /// read it, and only its owner may write to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers_file: Option<PathBuf>,
}

fn interval() -> Span {
    Span(Duration::from_secs(30))
}

fn timeout() -> Pause {
    Pause(Duration::from_secs(10))
}

impl Otlp {
    /// Reads the headers.
    ///
    /// # Errors
    /// [`ConfigError::Place`], with the key, or [`ConfigError::Slow`]. No message contains a value
    /// of a header.
    pub fn headers(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let Some(path) = &self.headers_file else {
            return Ok(Vec::new());
        };
        let text = within(path, PATIENCE, private_text)?;
        headers(&text).map_err(|why| place(path, why))
    }
}

fn place(path: &Path, why: String) -> ConfigError {
    ConfigError::Place {
        key: "metrics.otlp.headers_file",
        path: path.to_owned(),
        why,
    }
}

/// The text of a file that others can neither read nor change.
fn private_text(path: &Path) -> Result<String, ConfigError> {
    let meta = path.metadata();
    let meta = meta.map_err(|error| place(path, error.to_string()))?;
    if meta.permissions().mode() & 0o027 != 0 {
        let why = "others can read or change this: chmod 600".to_owned();
        return Err(place(path, why));
    }
    text(path).map_err(|error| place(path, error.to_string()))
}

fn headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let headers: Vec<_> = lines
        .map(|(number, line)| {
            header(line).ok_or_else(|| {
                format!(
                    "line {number} is not NAME: VALUE, the name (not {}) of letters, digits, - and \
                     _, the value of ASCII characters",
                    OWN_HEADERS.join(", ")
                )
            })
        })
        .collect::<Result<_, _>>()?;
    match headers.len() > HEADERS_MAX {
        true => Err(format!("{} headers, at most {HEADERS_MAX}", headers.len())),
        false => Ok(headers),
    }
}

fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let (name, value) = (name.to_ascii_lowercase(), value.trim());
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    let is_good = !name.is_empty() && name.bytes().all(is_name) && value.bytes().all(is_value);
    (is_good && !OWN_HEADERS.contains(&&*name)).then(|| (name, value.to_owned()))
}

/// A URL that begins with `http://` and has a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// The host and port, as resolvers take them.
    authority: String,
    /// The rest, which begins with a slash.
    path: String,
}

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(format!(
                "'{text}' does not begin with http://; agewise does not encrypt: send to a \
                 Collector on this machine or node, which can pass it on by https"
            ));
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, PATH),
        };
        let (host, port) = authority.rsplit_once(':').unwrap_or_default();
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        let is_host = |byte: u8| {
            byte.is_ascii_alphanumeric()
                || b"-._".contains(&byte)
                || is_v6 && b"[]:".contains(&byte)
        };
        let is_path = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
        if host.is_empty()
            || !host.bytes().all(is_host)
            || !port.bytes().all(|byte| byte.is_ascii_digit())
            || !port.parse::<u16>().is_ok_and(|port| port > 0)
            || !path.bytes().all(is_path)
        {
            return Err(format!(
                "'{text}' is not http://HOST:PORT or http://HOST:PORT/PATH, like \
                 http://127.0.0.1:4318"
            ));
        }
        Ok(Endpoint {
            authority: authority.to_owned(),
            path: path.to_owned(),
        })
    }

    /// Its host and port.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

textual!(
    Endpoint,
    "http://HOST:PORT, followed by a path if it is not /v1/metrics",
    "^http://[^/]+:[0-9]+(/.*)?$"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn an_endpoint_has_a_host_a_port_and_a_path() {
        let shown = |text: &str| Endpoint::parse(text).map(|endpoint| endpoint.to_string());
        for (text, expected) in [
            ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
            ("http://a-b.c_d:1/x?y=1", "http://a-b.c_d:1/x?y=1"),
            ("http://127.0.0.1:80/", "http://127.0.0.1:80/"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected));
            assert_eq!(shown(expected).as_deref(), Ok(expected));
        }
        assert!(shown("https://a:4318").unwrap_err().contains("Collector"));
        for wrong in [
            "http://",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://user@a:1",
            "http://a b:1",
            "http://a::1:1",
            "http://a:1/x y",
            "http://a:1/\n",
        ] {
            assert!(shown(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn headers_come_from_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("headers");
        let text = format!(
            "[metrics.otlp]\nendpoint = 'http://a:1'\nheaders_file = '{}'\n",
            path.display()
        );
        let config = Config::parse(&text).unwrap();
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let places = config.check_places(&[]).map_err(|error| error.to_string());
            let headers = config.metrics.otlp.as_ref().unwrap().headers();
            assert_eq!(places.is_ok(), headers.is_ok());
            places.and(headers.map_err(|error| error.to_string()))
        };
        let said = config.check_places(&[]).unwrap_err().to_string();
        assert!(said.starts_with("metrics.otlp.headers_file: "), "{said}");
        let good = "# a token\n\nAuthorization: Bearer a:b\r\n x-scope_orgid :7\n";
        let token = ("authorization".to_owned(), "Bearer a:b".to_owned());
        let said = read(good, 0o600).unwrap_err();
        assert!(said.contains("line 4 is not"), "a space in a name: {said}");
        let good = good.replace("orgid ", "orgid");
        let org = ("x-scope_orgid".to_owned(), "7".to_owned());
        for mode in [0o600, 0o440] {
            assert_eq!(read(&good, mode), Ok(vec![token.clone(), org.clone()]));
        }
        for mode in [0o604, 0o644, 0o620, 0o602] {
            assert!(read(&good, mode).unwrap_err().contains("chmod 600"));
        }
        for wrong in [
            "secret",
            ": secret",
            "Host: secret",
            "a: secret\u{1}",
            "a: secr\u{e9}t",
        ] {
            let said = read(wrong, 0o600).unwrap_err();
            assert!(said.contains("line 1") && !said.contains("secr"), "{said}");
        }
        let many = "a: b\n".repeat(HEADERS_MAX + 1);
        assert!(read(&many, 0o600).unwrap_err().contains("at most 32"));
    }
}
