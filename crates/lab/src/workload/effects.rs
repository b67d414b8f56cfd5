// SPDX-License-Identifier: Apache-2.0
//! What a workload file says without effect, or what would take for ever.

use super::spec::{AreaSpec, ProcessSpec, Workload, WorkloadError};

/// The longest pause: a day.
const LONGEST_NS: u64 = 86_400 * 1_000_000_000;

fn has_twice(names: &[&str]) -> bool {
    (1..names.len()).any(|at| names[..at].contains(&names[at]))
}

impl Workload {
    /// Checks that a name stands for one file or cgroup.
    pub(super) fn check_names(&self) -> Result<(), WorkloadError> {
        let files: Vec<&str> = self.file.iter().map(|file| file.name.as_str()).collect();
        let cgroups: Vec<&str> = self
            .cgroup
            .iter()
            .map(|group| group.name.as_str())
            .collect();
        if has_twice(&files) || has_twice(&cgroups) {
            return Err(self.invalid("two files or two cgroups have one name".to_owned()));
        }
        Ok(())
    }

    /// Checks what would be accepted and then have no effect, or never end.
    pub(super) fn check_effects(&self, process: &ProcessSpec) -> Result<(), WorkloadError> {
        let of = &process.name;
        let (area, phase) = (&process.area, &process.phase);
        let areas: Vec<&str> = area.iter().map(|area| area.name.as_str()).collect();
        let is_file = |area: &AreaSpec| area.file.is_some() || !(area.own || area.mmap);
        let times = phase
            .iter()
            .flat_map(|of| [of.think_ns, of.every_ms.saturating_mul(1_000_000)]);
        let longest_ns = times.fold(process.start_ms.saturating_mul(1_000_000), u64::max);
        let reason =
            if process.count == 0 || process.repeat == 0 || phase.iter().any(|p| p.repeat == 0) {
                "count and repeat are at least 1"
            } else if phase
                .iter()
                .any(|of| of.touches == 0 && !of.stream.is_empty())
            {
                "a phase has streams but no touches"
            } else if !area.iter().all(is_file) {
                "own and mmap are for areas with a file"
            } else if has_twice(&areas) {
                "two areas have one name"
            } else if longest_ns > LONGEST_NS {
                "start_ms, every_ms and think_ns are at most a day"
            } else {
                return Ok(());
            };
        Err(self.invalid(format!("process {of}: {reason}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::SMALL;
    use super::*;

    #[test]
    fn what_has_no_effect_is_refused() {
        for (from, to, expected) in [
            ("touches = 10", "touches = 0", "no touches"),
            ("touches = 10", "touches = 10\nrepeat = 0", "at least 1"),
            ("name = \"one\"", "name = \"one\"\ncount = 0", "at least 1"),
            (
                "name = \"one\"",
                "name = \"one\"\nstart_ms = 18446744073709551",
                "at most a day",
            ),
            (
                "size = \"2MiB\"",
                "size = \"2MiB\"\nmmap = true",
                "with a file",
            ),
            (
                "[[process.phase]]",
                "[[process.area]]\nname = \"heap\"\nsize = \"4MiB\"\n[[process.phase]]",
                "two areas",
            ),
            (
                "[[process]]",
                "[[cgroup]]\nname = \"a\"\n[[cgroup]]\nname = \"a\"\n[[process]]",
                "two files or two cgroups",
            ),
        ] {
            let error = Workload::parse("bad", &SMALL.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
