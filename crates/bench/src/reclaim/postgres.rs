// SPDX-License-Identifier: Apache-2.0
//! PostgreSQL: a cluster in a directory of its own, and its protocol (version 3, simple queries;
//! "Frontend/Backend Protocol" of its manual).

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::installed::is_installed;

/// Name of its socket in the given directory.
pub const SOCKET: &str = ".s.PGSQL.5432";
/// Creates the table, once.
pub const TABLE: &str = "create table pairs (key text primary key, value bytea)";
/// PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;
/// The version of the protocol, 3.0.
const PROTOCOL: u32 = 3 << 16;
/// Length of a message's header: a letter, and the length of the rest.
const HEAD_BYTES: usize = 5;

/// The newest installed version. Debian does not put it in `PATH`.
pub fn executable(name: &str) -> Result<PathBuf, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let directory = entry.ok()?.path();
            let version = directory.file_name()?.to_str()?.parse().ok()?;
            let path = directory.join("bin").join(name);
            path.is_file().then_some((version, path))
        })
        .collect();
    found.sort();
    match found.pop() {
        Some((_, path)) => Ok(path),
        None => is_installed(name).map(|()| name.into()),
    }
}

/// Creates an empty cluster in the directory, which changes its owner.
pub fn prepare(directory: &Path) -> anyhow::Result<()> {
    chown(directory, Some(NOBODY), Some(NOBODY))
        .with_context(|| format!("{} for a user that is not root", directory.display()))?;
    let made = Command::new(executable("initdb").map_err(anyhow::Error::msg)?)
        .args(["--auth=trust", "--username=agewise", "--no-sync", "-D"])
        .arg(directory.join("data"))
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .context("initdb does not start")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "initdb: {}", said.trim());
    Ok(())
}

/// The server, with a quarter of the values' memory as its own buffers, as its manual advises; the
/// rest is page cache. Without autovacuum: a minute after its start, in the middle of whatever is
/// being measured, it would read the whole table and rewrite a part of it.
pub fn command(directory: &Path, size_bytes: u64) -> anyhow::Result<Command> {
    let mut command = Command::new(executable("postgres").map_err(anyhow::Error::msg)?);
    command
        .arg("-D")
        .arg(directory.join("data"))
        .arg("-k")
        .arg(directory)
        .args(["-c", "listen_addresses=", "-c", "fsync=off"])
        .args(["-c", "autovacuum=off", "-c"])
        .arg(format!("shared_buffers={}kB", size_bytes >> 12))
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir(directory);
    Ok(command)
}

/// Whether it accepts connections, according to the last line of postmaster.pid.
pub fn is_ready(directory: &Path) -> bool {
    let text = fs::read_to_string(directory.join("data/postmaster.pid"));
    text.is_ok_and(|text| text.trim_end().ends_with("ready"))
}

/// Appends the startup message of a connection.
pub fn greeting(request: &mut Vec<u8>) {
    let words = b"user\0agewise\0database\0postgres\0\0";
    request.extend_from_slice(&(words.len() as u32 + 8).to_be_bytes());
    request.extend_from_slice(&PROTOCOL.to_be_bytes());
    request.extend_from_slice(words);
}

/// Appends a query.
pub fn query(sql: &str, request: &mut Vec<u8>) {
    request.push(b'Q');
    request.extend_from_slice(&(sql.len() as u32 + 5).to_be_bytes());
    request.extend_from_slice(sql.as_bytes());
    request.push(0);
}

/// Appends a query for a value.
pub fn get(key: &str, request: &mut Vec<u8>) {
    query(
        &format!("select value from pairs where key = '{key}'"),
        request,
    );
}

/// Appends a statement that sets a value.
pub fn set(key: &str, value: &[u8], request: &mut Vec<u8>) {
    let mut sql = format!("insert into pairs values ('{key}', '\\x");
    for byte in value {
        let _ = write!(sql, "{byte:02x}");
    }
    sql.push_str("') on conflict (key) do update set value = excluded.value");
    query(&sql, request);
}

/// Whether an answer is complete: it ends with ReadyForQuery.
///
/// # Errors
/// The server reports an error, or a value is missing.
pub fn is_whole(mut answer: &[u8]) -> anyhow::Result<bool> {
    while let Some((head, rest)) = answer.split_at_checked(HEAD_BYTES) {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some(body) = length.checked_sub(4) else {
            bail!("the server said a message of {length} bytes");
        };
        let Some((body, rest)) = rest.split_at_checked(body) else {
            return Ok(false);
        };
        match head[0] {
            b'E' => bail!("the server said {:?}", String::from_utf8_lossy(body)),
            b'C' if body == b"SELECT 0\0" => bail!("the server has lost a key"),
            b'Z' => return Ok(true),
            _ => answer = rest,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    #[test]
    fn an_answer_is_whole_with_its_last_message() {
        let row = message(b'D', b"\0\x01\0\0\0\x03abc");
        let done = message(b'C', b"SELECT 1\0");
        let ready = message(b'Z', b"I");
        let answer = [row, done, ready].concat();
        for end in 0..answer.len() {
            assert!(!is_whole(&answer[..end]).unwrap(), "{end}");
        }
        assert!(is_whole(&answer).unwrap());
    }

    #[test]
    fn what_is_refused_or_lost_is_an_error() {
        assert!(is_whole(&message(b'C', b"SELECT 0\0")).is_err());
        let refused = is_whole(&message(b'E', b"SFATAL\0")).unwrap_err();
        assert!(refused.to_string().contains("FATAL"), "{refused}");
        assert!(is_whole(b"Z\0\0\0\0").is_err());
    }

    #[test]
    fn a_value_is_written_in_hexadecimal() {
        let mut request = Vec::new();
        set("k", b"\x00\xff", &mut request);
        let length = u32::from_be_bytes(request[1..5].try_into().unwrap()) as usize;
        assert_eq!(length, request.len() - 1);
        let sql = String::from_utf8(request[5..].to_vec()).unwrap();
        assert!(
            sql.starts_with(r"insert into pairs values ('k', '\x00ff')"),
            "{sql}"
        );
    }
}
