// SPDX-License-Identifier: Apache-2.0
use super::filesystems::mount_kind;
use super::*;

const MAPS: &str = "\
55d0c0a00000-55d0c0a21000 r--p 00000000 fe:00 1234                       /usr/bin/cat
55d0c1a00000-55d0c1a21000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000200000 rw-s 00001000 fe:00 99                         /data/with space (deleted)
7f0000200000-7f0000201000 ---p 00000000 00:00 0 
7f0000300000-7f0000301000 rw-p 00000000 00:00 0                          [anon:arena]
7ffd00000000-7ffd00004000 r--p 00000000 00:00 0                          [vvar]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

#[test]
fn maps_lines_are_understood() {
    let table = VmaTable::from_text(MAPS);
    let kinds: Vec<_> = table.vmas().iter().map(|vma| vma.kind).collect();
    use VmaKind::*;
    assert_eq!(
        kinds,
        [FilePrivate, Anon, FileShared, Anon, Anon, Special, Special]
    );
    let names: Vec<_> = table.vmas().iter().map(|vma| table.name(vma)).collect();
    assert_eq!(names[2], "/data/with space (deleted)");
    assert_eq!(names[3], "");
    assert_eq!(names[4], "[anon:arena]");
    let file = &table.vmas()[2];
    assert_eq!((file.inode, file.offset, file.shared), (99, 0x1000, true));
    assert_eq!(file.device, rustix::fs::makedev(0xfe, 0));
    assert!(!table.vmas()[3].read && !table.vmas()[3].write);
}

#[test]
fn the_name_of_adjacent_mappings_is_kept_once() {
    let text = "\
        1000-2000 r--p 00000000 fe:00 7 /lib/c\n\
        2000-3000 r-xp 00001000 fe:00 7 /lib/c\n\
        3000-4000 rw-p 00000000 00:00 0 \n\
        4000-5000 rw-p 00002000 fe:00 7 /lib/c\n";
    let table = VmaTable::from_text(text);
    let names: Vec<_> = table.vmas().iter().map(|vma| table.name(vma)).collect();
    assert_eq!(names, ["/lib/c", "/lib/c", "", "/lib/c"]);
    assert_eq!(table.names, "/lib/c/lib/c");
}

#[test]
fn find_takes_the_mapping_and_no_hole() {
    let table = VmaTable::from_text(MAPS);
    assert_eq!(table.find(0x7f00001fffff).map(|vma| vma.inode), Some(99));
    assert_eq!(table.find(0x7f0000250000), None);
    assert_eq!(table.find(u64::MAX), None);
}

#[test]
fn what_is_no_maps_line_is_an_error_with_its_path() {
    for bad in [
        "nonsense",
        "1000-0fff r--p 0 0:0 0",
        "1000-2000 r-",
        "1-2",
        "g-2 rwxp",
    ] {
        let filesystems = &mut Filesystems::default();
        let path = "/proc/1/maps".as_ref();
        let error = VmaTable::new().parse(bad.as_bytes(), filesystems, path);
        assert!(
            error.unwrap_err().to_string().contains("/proc/1/maps"),
            "{bad}"
        );
    }
}

#[test]
fn locked_mappings_are_found_by_their_flags() {
    let mut table = VmaTable::from_text(MAPS);
    let smaps = "55d0c1a00000-55d0c1a21000 rw-p 00000000 00:00 0   [heap]\nSize: 4 kB\n\
                     VmFlags: rd wr mr mw me lo ac \n\
                     7f0000000000-7f0000200000 rw-s 00001000 fe:00 99  /x\nVmFlags: rd wr sh\n";
    mark_locked_from(smaps.as_bytes(), &mut table.vmas);
    let locked: Vec<_> = table.vmas().iter().map(|vma| vma.locked).collect();
    assert_eq!(locked, [false, true, false, false, false, false, false]);
}

#[test]
fn mount_tables_name_tmpfs_and_hugetlbfs() {
    let line = "31 23 0:27 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1k";
    assert_eq!(
        mount_kind(line),
        Some((rustix::fs::makedev(0, 27), Some(VmaKind::Shmem)))
    );
    assert_eq!(
        mount_kind("1 1 8:1 / / rw - ext4 /dev/sda1 rw"),
        Some((rustix::fs::makedev(8, 1), None))
    );
}

/// A file of device 0:50, in a process with this mount table, which may not exist.
fn kind_with(reader: &mut MapsReader, mounts: Option<&[u8]>) -> VmaKind {
    let process = reader.proc.of(7);
    std::fs::create_dir_all(&process).unwrap();
    let line = "1000-2000 r--p 00000000 00:32 9 /x\n";
    std::fs::write(process.join("maps"), line).unwrap();
    match mounts {
        Some(mounts) => std::fs::write(process.join("mountinfo"), mounts).unwrap(),
        None => std::fs::remove_file(process.join("mountinfo")).unwrap_or_default(),
    }
    let mut table = VmaTable::new();
    table.read_by(reader, 7).unwrap();
    table.vmas()[0].kind
}

#[test]
fn a_device_is_what_the_mount_table_last_said() {
    const TMPFS: &[u8] = b"31 23 0:50 / /mnt/\xff rw - tmpfs tmpfs rw\n";
    const OVERLAY: &[u8] = b"31 23 0:50 / / rw - overlay overlay rw\n";
    let dir = tempfile::tempdir().unwrap();
    let mut reader = MapsReader::below(crate::root::Roots::below(dir.path()).proc);
    // A table that cannot be read says nothing, for one look.
    assert_eq!(kind_with(&mut reader, None), VmaKind::FilePrivate);
    assert_eq!(kind_with(&mut reader, Some(TMPFS)), VmaKind::Shmem);
    // The file system was unmounted, and its number is now a container's.
    reader.forget_filesystems();
    assert_eq!(kind_with(&mut reader, Some(OVERLAY)), VmaKind::FilePrivate);
    reader.forget_filesystems();
    assert_eq!(kind_with(&mut reader, Some(TMPFS)), VmaKind::Shmem);
}

#[test]
fn a_mount_table_read_for_another_device_counts_too() {
    let mut known = Filesystems::default();
    let dir = tempfile::tempdir().unwrap();
    let mounts = dir.path().join("mountinfo");
    let mut kind = |line: &[u8], table: &str| {
        std::fs::write(&mounts, table).unwrap();
        known.kind(&Line::parse(line).unwrap(), &mut Some(&mounts))
    };
    let (a, b) = (
        b"1000-2000 r--p 0 00:32 9 /a",
        b"1000-2000 r--p 0 00:33 9 /b",
    );
    assert_eq!(kind(a, "1 1 0:50 / /a rw - tmpfs a rw"), VmaKind::Shmem);
    let other = "1 1 0:50 / /a rw - xfs a rw\n2 1 0:51 / /b rw - tmpfs b rw";
    assert_eq!(kind(b, other), VmaKind::Shmem);
    assert_eq!(kind(a, ""), VmaKind::FilePrivate);
}

/// A process can map files of thousands of file systems that are mounted no more.
#[test]
fn one_look_reads_a_mount_table_once() {
    let mut known = Filesystems::default();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mountinfo");
    let mut mounts = Some(path.as_path());
    let mut kind = |line: &[u8], table: &str| {
        std::fs::write(&path, table).unwrap();
        known.kind(&Line::parse(line).unwrap(), &mut mounts)
    };
    let table = "1 1 0:51 / /b rw - tmpfs b rw";
    assert_eq!(
        kind(b"1000-2000 r--p 0 00:32 9 /a", ""),
        VmaKind::FilePrivate
    );
    assert_eq!(
        kind(b"1000-2000 r--p 0 00:33 9 /b", table),
        VmaKind::FilePrivate
    );
}

#[test]
fn our_own_shared_memory_is_told_from_files() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let fd = memfd_create("vma-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 8192).unwrap();
    // SAFETY: a new mapping of our own file, unmapped below.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ,
            MapFlags::SHARED,
            &fd,
            0,
        )
        .unwrap()
    };
    let mut table = VmaTable::new();
    table.read(std::process::id()).unwrap();
    let vma = table.find(at as u64).unwrap();
    assert_eq!(vma.kind, VmaKind::Shmem, "{}", table.name(vma));
    assert!(
        table
            .vmas()
            .iter()
            .any(|vma| vma.kind == VmaKind::FilePrivate)
    );
    // SAFETY: the mapping made above.
    unsafe { munmap(at, 8192).unwrap() };
}

#[test]
fn a_list_that_cannot_be_read_leaves_the_one_before() {
    let mut table = VmaTable::new();
    table.read(std::process::id()).unwrap();
    let before = table.vmas().to_vec();
    table.read(u32::MAX).unwrap_err();
    assert_eq!(table.vmas(), before);
}

#[test]
fn a_list_that_ends_in_nonsense_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut reader = MapsReader::below(crate::root::Roots::below(dir.path()).proc);
    let process = reader.proc.of(7);
    std::fs::create_dir_all(&process).unwrap();
    let write = |maps: &str| std::fs::write(process.join("maps"), maps).unwrap();
    let mut table = VmaTable::new();
    write(MAPS);
    table.read_by(&mut reader, 7).unwrap();
    let before = table.vmas().to_vec();
    write("1000-2000 r--p 00000000 00:32 9 /x\n2000-nonsense\n");
    table.read_by(&mut reader, 7).unwrap_err();
    assert_eq!(table.vmas(), before);
    assert_eq!(table.name(&before[1]), "[heap]");
}
