// SPDX-License-Identifier: Apache-2.0
//! Where connections come from: a TCP port, or a socket in the file system with restricted access.

use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with};

use agewise_host::throttle::stale;

use super::ServeError;
use crate::config::Listen;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening socket. One in the file system is removed when this is dropped.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener, SocketAddr),
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// The inode, so that only our own socket is removed.
        id: Option<(u64, u64)>,
    },
}

impl Listener {
    /// Listens on an address. A socket in the file system gets this mode, whatever the umask.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(listen: &Listen, allow_remote: bool, socket_mode: u32) -> Result<Self, ServeError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse {
                listen: listen.clone(),
            },
            _ => ServeError::Listen {
                listen: listen.clone(),
                source,
            },
        };
        let kind = match listen {
            Listen::Tcp(address) => {
                if !address.ip().is_loopback() && !allow_remote {
                    return Err(ServeError::NotLoopback { address: *address });
                }
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                Kind::Tcp(listener, address)
            }
            Listen::Unix(path) => {
                remove_stale(path, listen)?;
                let listener = bind_unix(path, socket_mode).map_err(failed)?;
                Kind::Unix {
                    listener,
                    path: path.clone(),
                    id: id_of(path),
                }
            }
        };
        Ok(Listener(kind))
    }

    /// Listens on a socket that another process opened, and will remove.
    ///
    /// # Errors
    /// It is no socket.
    pub fn given(socket: OwnedFd) -> io::Result<Self> {
        // Whoever served here before may have made it block.
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Listener(Kind::Unix {
            // It may also be a TCP port: waiting and accepting are the same for both.
            listener: UnixListener::from(socket),
            path: PathBuf::new(),
            id: None,
        }))
    }

    /// The address of a TCP port.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(_, address) => Some(*address),
            Kind::Unix { .. } => None,
        }
    }

    /// The next connection, if one is waiting.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        // Not with the types of the standard library: a socket that was passed may belong to either
        // family, and these types only accept connections of their own.
        match accept_with(self, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            // The client may have gone again.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Tcp(listener, _) => listener.as_fd(),
            Kind::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix { path, id, .. } = &self.0
            && id.is_some()
            && id_of(path) == *id
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn id_of(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Removes a socket that nobody listens on any more: a killed daemon left it, and it blocks the
/// address.
fn remove_stale(path: &Path, listen: &Listen) -> Result<(), ServeError> {
    let Ok(meta) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !meta.file_type().is_socket() {
        return Err(ServeError::NoSocket {
            path: path.to_owned(),
        });
    }
    match stale::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServeError::Listen {
                listen: listen.clone(),
                source,
            })
        }
        _ => Err(ServeError::InUse {
            listen: listen.clone(),
        }),
    }
}

/// The mode is set before the socket has a name, so others can never connect.
fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The umask took from it. What stands there may be a link by now, which is not followed.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&named)?.st_mode).is_socket() {
        let named = format!("/proc/self/fd/{}", named.as_raw_fd());
        std::fs::set_permissions(named, Permissions::from_mode(mode))?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn accepts_soon(listener: &Listener) {
        let began = std::time::Instant::now();
        while listener.accept().unwrap().is_none() {
            assert!(began.elapsed().as_secs() < 30, "nobody was accepted");
        }
    }

    #[test]
    fn one_that_was_given_accepts_from_a_port_and_from_a_socket() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        let given = Listener::given(port.into()).unwrap();
        assert!(given.accept().unwrap().is_none());
        let _caller = TcpStream::connect(address).unwrap();
        accepts_soon(&given);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = UnixListener::bind(&path).unwrap();
        let given = Listener::given(socket.into()).unwrap();
        assert!(given.accept().unwrap().is_none());
        let _caller = UnixStream::connect(&path).unwrap();
        accepts_soon(&given);
    }
}
