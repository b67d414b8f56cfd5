// SPDX-License-Identifier: Apache-2.0
//! Where the kernel's page-cache accesses are traced: its tracepoints, or on older kernels the
//! functions behind them.

use libbpf_rs::{Link, Object, OpenObject};

use crate::bpf::KernelTypes;

/// The kind of access seen at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// `read`, `pread`, `sendfile`, `splice`, io_uring.
    Reads,
    /// Faults on pages that were not mapped.
    Faults,
    /// The first write to a clean folio.
    Writes,
}

impl Sees {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Sees::Reads => "reads",
            Sees::Faults => "faults",
            Sees::Writes => "writes",
        }
    }
}

/// How the BPF program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tracepoint,
    /// The entry of a function, through a BPF trampoline.
    Function,
}

/// A place in the kernel, and the program attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name in the kernel.
    pub name: &'static str,
    /// How the program is attached.
    pub kind: Kind,
    /// The accesses seen there.
    pub sees: Sees,
    program: &'static str,
}

const fn tracepoint(name: &'static str, sees: Sees, program: &'static str) -> Hook {
    Hook {
        name,
        kind: Kind::Tracepoint,
        sees,
        program,
    }
}

const fn function(name: &'static str, sees: Sees, program: &'static str) -> Hook {
    Hook {
        name,
        kind: Kind::Function,
        sees,
        program,
    }
}

pub const HOOKS: [Hook; 6] = [
    tracepoint("mm_filemap_get_pages", Sees::Reads, "get_pages"),
    tracepoint("mm_filemap_fault", Sees::Faults, "fault"),
    tracepoint("writeback_dirty_folio", Sees::Writes, "dirty"),
    function("filemap_read", Sees::Reads, "read_call"),
    function("filemap_splice_read", Sees::Reads, "splice_call"),
    function("filemap_fault", Sees::Faults, "fault_call"),
];

/// Of the hooks a kernel has, chooses those to use: tracepoints, which cost less and report what
/// was found, and functions only for accesses no tracepoint sees.
pub fn chosen(has: impl Fn(&Hook) -> bool) -> Vec<&'static Hook> {
    let there: Vec<_> = HOOKS.iter().filter(|hook| has(hook)).collect();
    let by_tracepoint = |sees| {
        let mut tracepoints = there.iter().filter(|hook| hook.kind == Kind::Tracepoint);
        tracepoints.any(|hook| hook.sees == sees)
    };
    let is_best = |hook: &&Hook| hook.kind == Kind::Tracepoint || !by_tracepoint(hook.sees);
    there.iter().copied().filter(is_best).collect()
}

/// Whether reads are traced at a tracepoint.
pub(crate) fn reads_by_tracepoint(hooks: &[&Hook]) -> bool {
    let mut of_reads = hooks.iter().filter(|hook| hook.sees == Sees::Reads);
    of_reads.any(|hook| hook.kind == Kind::Tracepoint)
}

/// [`chosen`] on the running kernel.
pub(crate) fn of_kernel() -> Vec<&'static Hook> {
    let kernel = KernelTypes::read();
    chosen(|hook| match hook.kind {
        Kind::Tracepoint => kernel.have_tracepoint(hook.name),
        Kind::Function => kernel.have_function(hook.name),
    })
}

/// Limits loading to the programs of an object that belong to `hooks`. Programs that belong to no
/// hook are unaffected.
pub(crate) fn select(open: &mut OpenObject, hooks: &[&Hook]) {
    for mut program in open.progs_mut() {
        let is_on = |hook: &Hook| program.name() == hook.program;
        if HOOKS.iter().any(is_on) {
            let wanted = hooks.iter().any(|hook| is_on(hook));
            program.set_autoload(wanted);
        }
    }
}

/// Attaches the loaded programs of an object.
///
/// # Errors
/// The kernel refuses to attach one.
pub(crate) fn attach(object: &Object) -> libbpf_rs::Result<Vec<Link>> {
    let loaded = object.progs_mut().filter(|program| program.autoload());
    loaded.map(|program| program.attach_trace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(lacks: &[&str]) -> Vec<&'static str> {
        let hooks = chosen(|hook| !lacks.contains(&hook.name));
        hooks.into_iter().map(|hook| hook.name).collect()
    }

    #[test]
    fn functions_stand_in_for_the_tracepoints_that_are_missing() {
        let tracepoints = [
            "mm_filemap_get_pages",
            "mm_filemap_fault",
            "writeback_dirty_folio",
        ];
        assert_eq!(names(&[]), tracepoints);
        assert_eq!(
            names(&tracepoints),
            ["filemap_read", "filemap_splice_read", "filemap_fault"]
        );
        // Linux 6.1.
        assert_eq!(
            names(&[tracepoints[0], tracepoints[1], "filemap_splice_read"]),
            ["writeback_dirty_folio", "filemap_read", "filemap_fault"]
        );
        assert_eq!(
            names(&["mm_filemap_fault"]),
            [tracepoints[0], tracepoints[2], "filemap_fault"]
        );
    }
}
