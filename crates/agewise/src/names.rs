// SPDX-License-Identifier: Apache-2.0
//! Host names in a program that is linked with a static glibc.

use std::ffi::{c_char, c_int};

unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

/// Has host names looked up in `/etc/hosts` and by DNS, whatever `/etc/nsswitch.conf` says: its
/// other modules (`resolve`, `myhostname`, `mdns4`) are libraries, and those of another glibc kill
/// the program. To be called before there are threads.
pub fn look_up_without_libraries() {
    // SAFETY: both strings end with NUL; glibc copies what it keeps.
    let failed = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    debug_assert_eq!(failed, 0, "glibc has these services built in");
}
