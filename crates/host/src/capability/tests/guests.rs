// SPDX-License-Identifier: Apache-2.0
//! The row of KVM guests.

use std::os::unix::fs::symlink;

use super::*;

#[test]
fn guests_are_a_line_where_there_are_some() {
    let table_with = |target: &str| {
        let fake = Fake::modern();
        for pid in [4711, 4712] {
            let fds = fake.top.path().join(format!("proc/{pid}/fd"));
            fs::create_dir_all(&fds).unwrap();
            symlink(target, fds.join("11")).unwrap();
        }
        fake.table()
    };
    let without = table_with("anon_inode:[eventpoll]");
    assert!(without.get(Group::Machine, "guests").is_none());
    let with = table_with("anon_inode:kvm-vm");
    let line = with.get(Group::Machine, "guests").unwrap();
    assert_eq!(line.state, State::Limited);
    let found = "processes 4711, 4712 run KVM guests: what guests access is not seen";
    assert!(line.found.starts_with(found), "{}", line.found);
    assert!(line.found.contains("--guests"), "{}", line.found);
}
