// SPDX-License-Identifier: Apache-2.0
//! Names of cached files, and the processes that have them open.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use super::cached::CachedFile;
use super::shown::CacheKind;
use crate::error::FileError;
use crate::octal;
use crate::root::{ProcRoot, numbers_in};
use crate::untrusted::Untrusted;
use crate::vma::{MapsReader, VmaTable};

/// A device in the usual notation `major:minor`.
pub fn device_text(device: u32) -> String {
    format!("{}:{}", device >> 20, device & 0xf_ffff)
}

/// What a file is called: a path at which it can be reached, else its path below the root of its
/// file system, else its inode; and whether it was deleted or is shared memory.
pub fn label(file: &CachedFile, path: Option<&Untrusted>, name: Option<&Untrusted>) -> Untrusted {
    let mut label = match (path, name) {
        (Some(path), _) => path.as_bytes().to_vec(),
        // The inode number of a block device encodes its device number.
        _ if file.on.kind == CacheKind::Device => {
            let device = u32::try_from(file.inode.number).unwrap_or_default();
            format!("block device {}", device_text(device)).into_bytes()
        }
        (None, Some(name)) => [file.on.fs_type.as_bytes(), b":", name.as_bytes()].concat(),
        (None, None) => format!(
            "{}:inode {} on {}",
            file.on.fs_type,
            file.inode.number,
            device_text(file.on.device)
        )
        .into_bytes(),
    };
    if file.inode.links == 0 {
        label.extend_from_slice(b" (deleted)");
    }
    if file.on.kind == CacheKind::Shmem {
        label.extend_from_slice(b" (shared memory)");
    }
    Untrusted::from(&*label)
}

/// The files that a process has open or mapped now, as `stat` reports them. One that is gone, or
/// may not be examined, has none.
pub fn files_of(root: &ProcRoot, pid: u32) -> HashSet<(u64, u64)> {
    let mut table = VmaTable::default();
    let mut found: HashSet<(u64, u64)> =
        descriptors(root, pid).map(|(_, open)| open.file).collect();
    if table
        .read_by(&mut MapsReader::below(root.clone()), pid)
        .is_ok()
    {
        found.extend(mapped(&table));
    }
    found
}

/// What a descriptor refers to.
struct Open {
    /// As `stat` reports it: device and inode.
    file: (u64, u64),
    links: u32,
}

/// The descriptors of a process, and what they refer to.
fn descriptors(root: &ProcRoot, pid: u32) -> impl Iterator<Item = (PathBuf, Open)> {
    let entries = fs::read_dir(root.join(format!("{pid}/fd")));
    let paths = entries.into_iter().flatten().flatten();
    paths.filter_map(|entry| {
        let path = entry.path();
        // What the kernel knows: a file system that no longer answers is not asked.
        let wanted = StatxFlags::INO | StatxFlags::NLINK;
        let stat = statx(CWD, &path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        let open = Open {
            file: (
                makedev(stat.stx_dev_major, stat.stx_dev_minor),
                stat.stx_ino,
            ),
            links: stat.stx_nlink,
        };
        Some((path, open))
    })
}

/// The files behind mappings, as `stat` reports them.
fn mapped(table: &VmaTable) -> impl Iterator<Item = (u64, u64)> + '_ {
    let of_files = table.vmas().iter().filter(|vma| vma.inode != 0);
    of_files.map(|vma| (vma.device, vma.inode))
}

/// The mount tables of the mount namespaces in which files are looked for.
#[derive(Debug, Default)]
pub struct Mounts(Vec<MountTable>);

/// What one mount namespace has mounted.
#[derive(Debug)]
struct MountTable {
    /// Where its root can be reached: `/`, or `/proc/PID/root`.
    reached_at: PathBuf,
    mounts: Vec<Mount>,
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: u32,
    /// The mount it is on; for the topmost, one that is not listed, or itself.
    parent: u32,
    device: u32,
    /// The directory of the file system that is mounted there.
    root: PathBuf,
    at: PathBuf,
    /// Of an overlay: the mount options that name the directories of its layers.
    layers: Option<Untrusted>,
}

/// A file found by its path, with data from `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path, from our root.
    pub path: PathBuf,
    /// `st_dev`; on btrfs it differs from the device of the file system.
    pub device: u64,
}

impl Mounts {
    /// Reads the mount table of this process, and that of init if its mount namespace is another,
    /// as it is to a container that shares the pids of the host.
    ///
    /// # Errors
    /// The table of this process cannot be read.
    pub fn read(root: &ProcRoot) -> Result<Self, FileError> {
        let read = |of: &str| {
            let path = root.join(of).join("mountinfo");
            fs::read(&path).map_err(|source| FileError::Read { path, source })
        };
        let mut tables = vec![MountTable::parse(Path::new("/"), &read("self")?)];
        let namespace = |of: &str| fs::read_link(root.join(of).join("ns/mnt")).ok();
        // Without the privilege to ask, only our own paths are known.
        if let Some(of_init) = namespace("1")
            && namespace("self").is_some_and(|own| own != of_init)
            && let Ok(text) = read("1")
        {
            tables.push(MountTable::parse(&root.join("1/root"), &text));
        }
        Ok(Mounts(tables))
    }

    /// The paths at which a path below the root of a file system is visible.
    fn seen<'a>(&'a self, device: u32, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        self.0
            .iter()
            .flat_map(move |table| table.seen(device, path))
    }

    /// Finds an inode by a path below the root of its file system. Checks the file there, so that
    /// another file is not reported under this name.
    pub fn find(&self, device: u32, path: &Path, inode: u64) -> Option<Place> {
        self.seen(device, path).find_map(|path| {
            let found = fs::symlink_metadata(&path).ok()?;
            (found.ino() == inode).then(|| Place {
                path,
                device: found.dev(),
            })
        })
    }

    /// Whether anything of a file system can be below a directory.
    pub fn reaches(&self, device: u32, under: &Path) -> bool {
        self.0.iter().any(|table| {
            let mut of = table.mounts.iter().filter(|mount| mount.device == device);
            match under.strip_prefix(&table.reached_at) {
                Ok(below) => {
                    let under = Path::new("/").join(below);
                    of.any(|mount| mount.at.starts_with(&under) || under.starts_with(&mount.at))
                }
                Err(_) => table.reached_at.starts_with(under) && of.next().is_some(),
            }
        })
    }

    /// If a directory is on an overlay, the mount options that name its layers: the files seen
    /// there are cached as files of those.
    pub fn layers(&self, dir: &Path) -> Option<&Untrusted> {
        // The first table is that of this process.
        self.0.first()?.at(dir)?.layers.as_ref()
    }

    /// Whether a path below the root of a file system is visible below a directory.
    pub fn is_under(&self, device: u32, path: &Path, under: &Path) -> bool {
        self.seen(device, path).any(|path| path.starts_with(under))
    }
}

impl MountTable {
    fn parse(reached_at: &Path, text: &[u8]) -> Self {
        let mounts = text.split(|byte| *byte == b'\n').filter_map(Mount::parse);
        MountTable {
            reached_at: reached_at.to_owned(),
            mounts: mounts.collect(),
        }
    }

    /// Where an absolute path of this namespace can be reached.
    fn reach(&self, path: &Path) -> PathBuf {
        self.reached_at.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn seen<'a>(&'a self, device: u32, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let of = self
            .mounts
            .iter()
            .filter(move |mount| mount.device == device);
        of.filter_map(move |mount| {
            let below = path.strip_prefix(&mount.root).ok()?;
            let path = match below.as_os_str().is_empty() {
                true => mount.at.clone(),
                false => mount.at.join(below),
            };
            // What hides it would be asked in its place, and might never answer.
            (self.at(&path) == Some(mount)).then(|| self.reach(&path))
        })
    }

    /// The mount that a path leads to: from the topmost, always on to what is mounted first on the
    /// way, if only on the same directory.
    fn at(&self, path: &Path) -> Option<&Mount> {
        let is_listed = |id| self.mounts.iter().any(|mount| mount.id == id);
        let is_top = |mount: &&Mount| mount.parent == mount.id || !is_listed(mount.parent);
        let on_the_way = |mount: &&Mount| path.starts_with(&mount.at);
        let first = |mount: &&Mount| mount.at.as_os_str().len();
        let tops = self.mounts.iter().filter(on_the_way).filter(is_top);
        let mut at = tops.min_by_key(first)?;
        // Whatever the table says, this ends.
        for _ in &self.mounts {
            let on_it = |mount: &&Mount| mount.parent == at.id && mount.id != at.id;
            let below = self.mounts.iter().filter(on_the_way).filter(on_it);
            match below.min_by_key(first) {
                Some(next) => at = next,
                None => break,
            }
        }
        Some(at)
    }
}

impl Mount {
    /// Parses a line of mountinfo (proc_pid_mountinfo(5)): id, parent, major:minor, root, mount
    /// point, options; after a dash the type, the device and options of the file system.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut id = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (id()?, id()?);
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let path = |field: &[u8]| octal::unescape(field).into();
        Some(Mount {
            id,
            parent,
            device: major.checked_shl(20)? | minor,
            root: path(fields.next()?),
            at: path(fields.next()?),
            layers: layers(fields),
        })
    }
}

/// Returns the options of an overlay that name its layers, given what follows the mount point.
fn layers<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Option<Untrusted> {
    let mut of_fs = fields.skip_while(|field| *field != b"-").skip(1);
    of_fs.next().filter(|fs_type| *fs_type == b"overlay")?;
    let options = of_fs.nth(1)?.split(|byte| *byte == b',');
    let named = options.filter(|option| {
        let starts = |name: &[u8]| option.starts_with(name);
        starts(b"lowerdir") || starts(b"upperdir=")
    });
    let named: Vec<&[u8]> = named.collect();
    Some(Untrusted::from(&*octal::unescape(&named.join(&b','))))
}

/// The processes that currently have files open or mapped.
#[derive(Debug, Default)]
pub struct Openers {
    pids: HashMap<(u64, u64), BTreeSet<u32>>,
    /// What descriptors call files of memfd_create(2), which have no name elsewhere.
    memfds: HashMap<(u64, u64), OsString>,
}

impl Openers {
    /// Searches the descriptors and mappings of all processes for files given as `st_dev` and
    /// inode. Processes that go away, or may not be examined, count as having nothing open.
    ///
    /// # Errors
    /// The processes cannot be listed.
    pub fn find(root: &ProcRoot, files: &HashSet<(u64, u64)>) -> Result<Self, FileError> {
        let mut found = Openers::default();
        let mut maps = MapsReader::new();
        let mut table = VmaTable::default();
        for pid in numbers_in(root.path())? {
            for (path, Open { file, links }) in descriptors(root, pid) {
                found.note(files, file, pid);
                if links == 0 && files.contains(&file) {
                    found.note_memfd(file, &path);
                }
            }
            if table.read_by(&mut maps, pid).is_ok() {
                mapped(&table).for_each(|file| found.note(files, file, pid));
            }
        }
        Ok(found)
    }

    fn note(&mut self, files: &HashSet<(u64, u64)>, file: (u64, u64), pid: u32) {
        if files.contains(&file) {
            self.pids.entry(file).or_default().insert(pid);
        }
    }

    /// Notes the name in a link such as `/memfd:NAME (deleted)`.
    fn note_memfd(&mut self, file: (u64, u64), descriptor: &Path) {
        let Ok(link) = fs::read_link(descriptor) else {
            return;
        };
        let name = link.as_os_str().as_bytes().strip_prefix(b"/");
        let name = name.and_then(|name| name.strip_suffix(b" (deleted)"));
        if let Some(name) = name.filter(|name| name.starts_with(b"memfd:")) {
            let name = OsStr::from_bytes(name).to_owned();
            self.memfds.entry(file).or_insert(name);
        }
    }

    /// What a descriptor calls a file of memfd_create(2): `memfd:NAME`.
    pub fn memfd(&self, device: u64, inode: u64) -> Option<&OsStr> {
        self.memfds.get(&(device, inode)).map(OsString::as_os_str)
    }

    /// The processes that have a file open or mapped, ascending.
    pub fn of(&self, device: u64, inode: u64) -> impl Iterator<Item = u32> + '_ {
        let pids = self.pids.get(&(device, inode));
        pids.into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_has_the_name_its_creator_gave_it() {
        let memfd = rustix::fs::memfd_create("x (1)", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let stat = rustix::fs::fstat(&memfd).unwrap();
        let file = (stat.st_dev, stat.st_ino);
        let found = Openers::find(&ProcRoot::default(), &HashSet::from([file])).unwrap();
        assert_eq!(found.memfd(file.0, file.1), Some(OsStr::new("memfd:x (1)")));
        assert!(
            found
                .of(file.0, file.1)
                .any(|pid| pid == std::process::id())
        );
    }

    fn parse(text: &[u8]) -> Mounts {
        Mounts(vec![MountTable::parse(Path::new("/"), text)])
    }

    #[test]
    fn a_path_is_seen_where_its_file_system_is_mounted() {
        let mounts = parse(
            b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
              30 22 7:3 / /mnt/a\\040b rw - xfs /dev/loop3 rw\n\
              31 22 254:0 /var/lib /srv rw - ext4 /dev/vda rw\n\
              broken\n",
        );
        let seen = |device: u32, path: &str| -> Vec<PathBuf> {
            mounts.seen(device, Path::new(path)).collect()
        };
        let (vda, loop3) = (254 << 20, 7 << 20 | 3);
        assert_eq!(seen(loop3, "/x"), [Path::new("/mnt/a b/x")]);
        assert_eq!(
            seen(vda, "/var/lib/x"),
            [Path::new("/var/lib/x"), Path::new("/srv/x")]
        );
        assert_eq!(seen(vda, "/var"), [Path::new("/var")]);
        assert!(
            seen(vda, "/mnt/a b/x").is_empty(),
            "hidden by what is mounted there"
        );
        assert!(seen(1, "/x").is_empty());
        assert!(mounts.is_under(vda, Path::new("/var/lib/x"), Path::new("/srv")));
        assert!(!mounts.is_under(loop3, Path::new("/x"), Path::new("/srv")));
        assert!(mounts.reaches(loop3, Path::new("/mnt/a b/c")));
        assert!(!mounts.reaches(loop3, Path::new("/srv")));
        assert_eq!(device_text(vda), "254:0");
    }

    #[test]
    fn an_overlay_names_its_layers() {
        let mounts = parse(
            b"22 1 254:0 / / rw - ext4 /dev/vda rw,lowerdir=/no\n\
              30 22 0:50 / /mnt/all rw,relatime shared:5 - overlay overlay \
              rw,lowerdir=/a\\040b:/c,upperdir=/up,workdir=/work,uuid=on\n",
        );
        let layers = |dir: &str| mounts.layers(Path::new(dir)).map(Untrusted::as_bytes);
        let named: &[u8] = b"lowerdir=/a b:/c,upperdir=/up";
        assert_eq!(layers("/mnt/all/deep"), Some(named));
        assert_eq!(layers("/mnt"), None);
    }

    /// As on a machine whose root was mounted last, by the initial RAM disk.
    #[test]
    fn what_is_mounted_over_a_directory_is_not_asked_about_what_it_hides() {
        let mounts = parse(
            b"22 27 0:21 / /proc rw - proc proc rw\n\
              27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
              30 27 7:3 / /mnt rw - xfs /dev/loop3 rw\n\
              31 30 0:50 / /mnt rw - nfs far:/ rw\n\
              32 31 7:4 / /mnt/deep rw - xfs /dev/loop4 rw\n",
        );
        let seen = |device: u32, path: &str| mounts.seen(device, Path::new(path)).next();
        let (loop3, loop4) = (7 << 20 | 3, 7 << 20 | 4);
        assert_eq!(seen(loop3, "/x"), None, "under the network file system");
        assert_eq!(seen(loop4, "/x"), Some("/mnt/deep/x".into()));
        assert_eq!(seen(254 << 20, "/mnt/x"), None);
        assert_eq!(seen(254 << 20, "/x"), Some("/x".into()));
        assert_eq!(seen(21, "/1"), Some("/proc/1".into()));
        let odd = parse(b"1 2 7:3 / / rw\n2 1 7:3 / / rw\n");
        assert_eq!(odd.seen(loop3, Path::new("/x")).next(), None);
    }

    /// What covers a path in one namespace does not in another.
    #[test]
    fn a_file_system_of_another_namespace_is_reached_through_a_process_of_it() {
        let own = b"30 1 0:40 / / rw - overlay overlay rw\n31 30 0:21 / /proc rw - proc proc rw\n";
        let of_init =
            b"22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 7:3 / /mnt rw - xfs /dev/loop3\n";
        let root = Path::new("/proc/1/root");
        let tables = [(Path::new("/"), &own[..]), (root, &of_init[..])];
        let mounts = Mounts(tables.map(|(at, text)| MountTable::parse(at, text)).into());
        let seen = |device: u32, path: &str| mounts.seen(device, Path::new(path)).next();
        let (vda, loop3) = (254 << 20, 7 << 20 | 3);
        assert_eq!(seen(vda, "/var/x"), Some("/proc/1/root/var/x".into()));
        assert_eq!(seen(loop3, "/x"), Some("/proc/1/root/mnt/x".into()));
        assert_eq!(seen(vda, "/mnt/x"), None, "covered there");
        assert!(mounts.reaches(loop3, Path::new("/proc/1/root/mnt/y")));
        assert!(!mounts.reaches(loop3, Path::new("/mnt")));
        assert!(mounts.reaches(loop3, Path::new("/proc")));
    }
}
