// SPDX-License-Identifier: Apache-2.0
//! The policies to compare: those of the machine, and yardsticks over the same accesses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_trace::DenseTrace;
use agewise_trace::yardstick::Yardstick;

use super::machine_run::{Measured, Plan, Run, RunError, Subject, run_unless_stopped};
use crate::machine::Policy;
use crate::proactive::ProactivePlan;

/// A policy that runs on a workload or trace.
#[derive(Clone, Debug)]
pub enum Contender {
    /// A policy of the machine, as implemented by a kernel.
    Kernel(Policy),
    /// A replacement policy over a pool of pages as large as the limit. It sees each access when it
    /// happens, which no kernel does, and its work takes no time.
    Yardstick(Arc<dyn Yardstick>),
}

impl From<Policy> for Contender {
    fn from(policy: Policy) -> Self {
        Contender::Kernel(policy)
    }
}

impl Contender {
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Contender::Kernel(policy) => policy.name(),
            Contender::Yardstick(yardstick) => yardstick.name().to_owned(),
        }
    }

    /// SHA-256 of the file that describes it, if any.
    #[must_use]
    pub fn sha256(&self) -> Option<&str> {
        match self {
            Contender::Kernel(policy) => policy.kernel.sha256,
            Contender::Yardstick(yardstick) => yardstick.source_sha256(),
        }
    }

    /// The text of that file, if the policy can be made from it again.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Contender::Kernel(policy) => policy.kernel.text,
            Contender::Yardstick(yardstick) => yardstick.source_text(),
        }
    }

    /// The machine's policy during the accesses.
    #[must_use]
    pub fn machine_policy(&self) -> Policy {
        match self {
            Contender::Kernel(policy) => *policy,
            Contender::Yardstick(_) => Policy::default(),
        }
    }

    /// Runs the plan under this policy, or until `stop` is set. For a yardstick, all measures
    /// except accesses and major faults are NaN.
    ///
    /// # Errors
    /// [`RunError`] if the plan cannot be carried out or was stopped.
    pub fn run(
        &self,
        plan: &Plan,
        agent: Option<&ProactivePlan>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Measured, RunError> {
        let plan = Plan {
            policy: self.machine_policy(),
            proactive: agent.cloned(),
            ..plan.clone()
        };
        match self {
            Contender::Kernel(_) => run_unless_stopped(&plan, stop),
            Contender::Yardstick(yardstick) => run_yardstick(&plan, &**yardstick, stop),
        }
    }
}

/// Runs the subject with ample memory, and lets the yardstick decide over its accesses.
fn run_yardstick(
    plan: &Plan,
    yardstick: &dyn Yardstick,
    stop: &Arc<AtomicBool>,
) -> Result<Measured, RunError> {
    if plan.proactive.is_some() || plan.damon.is_some() {
        return Err(RunError::Yardstick(yardstick.name().to_owned()));
    }
    let capacity = plan.limit_pages()?;
    let mut values = vec![f64::NAN; plan.measures()?.len()];
    let (trace, reads) = accesses(plan, stop)?;
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    values[0] = trace.accesses().len() as f64;
    values[1] = yardstick.misses_among(&trace, capacity, &|at| reads[at]) as f64;
    // A policy that failed has set it, and has not counted to the end.
    match stop.load(Ordering::Relaxed) {
        true => Err(RunError::Stopped),
        false => match yardstick.failure() {
            Some(why) => Err(RunError::Policy(why)),
            None => Ok(values),
        },
    }
}

/// The accesses of a plan when nothing is ever reclaimed, and which of them read from a device if
/// the page is not in memory.
fn accesses(plan: &Plan, stop: &Arc<AtomicBool>) -> Result<(DenseTrace, Vec<bool>), RunError> {
    let subject = match &plan.subject {
        Subject::Workload(workload) => {
            let mut ample = (**workload).clone();
            (ample.machine_memory, ample.zones) = (None, None);
            ample.settings.clear();
            for group in &mut ample.cgroup {
                (group.max, group.high) = (None, None);
            }
            Subject::Workload(Arc::new(ample))
        }
        trace => trace.clone(),
    };
    let pages = subject.footprint_pages_max()?;
    let ample = Plan {
        subject,
        // Page tables and page-cache nodes need memory too.
        memory_pages: Some(pages + pages / 8 + (1 << 13)),
        settings: Vec::new(),
        ..plan.clone()
    };
    let mut run = Run::new(&ample)?;
    run.record_accesses();
    run.run_to_end(stop)?;
    run.take_accesses()
}

#[cfg(test)]
mod tests {
    use agewise_trace::yardstick::Counts;

    use super::*;
    use crate::study::StudyError;
    use crate::study::columns::columns;
    use crate::study::run::RunRequest;
    use crate::study::setup::Setup;
    use crate::study::table::Value;
    use crate::yardstick;

    /// One row per policy: its name, accesses, major faults, and whether the other measures are
    /// unknown.
    fn rows(subject: &str, memory: &str, way: &str) -> Vec<(String, u64, u64, bool)> {
        let (mut setup, mut sight) = Default::default();
        crate::study::options::from_text(way, &mut setup, &mut sight).unwrap();
        let request = RunRequest {
            setup: Setup {
                memory: Some(memory.to_owned()),
                ..setup
            },
            subject: subject.to_owned(),
            columns: columns(&["classic", "opt", "lru", "arc"], &[]).unwrap(),
            sight,
            seeds: Some(1),
            build: String::new(),
        };
        let table = request.run(&Arc::default(), |_| ()).unwrap().run_table();
        let row = |row: &Vec<Value>| {
            let value = |name: &str| {
                let at = table.columns.iter().position(|column| column.name == name);
                &row[at.unwrap()]
            };
            let count = |name: &str| match value(name) {
                Value::Number(number) => *number as u64,
                other => panic!("{name} is {other:?}"),
            };
            let Value::Text(policy) = value("policy") else {
                panic!("no name");
            };
            let faults = count("major_faults");
            let is_null = *value("scanned") == Value::Null;
            (policy.to_string(), count("accesses"), faults, is_null)
        };
        table.rows.iter().map(row).collect()
    }

    /// A policy that fails, as a class of Python whose method raises an exception.
    #[derive(Debug)]
    struct Failing(Arc<AtomicBool>);

    impl Yardstick for Failing {
        fn name(&self) -> &str {
            "failing"
        }

        fn misses_among(&self, _: &DenseTrace, _: usize, _: Counts<'_>) -> u64 {
            self.0.store(true, Ordering::Relaxed);
            0
        }
    }

    #[test]
    fn a_policy_that_failed_has_no_result() {
        let stop = Arc::default();
        let failing: Arc<dyn Yardstick> = Arc::new(Failing(Arc::clone(&stop)));
        let request = RunRequest {
            setup: Setup::default(),
            subject: "kv".to_owned(),
            columns: vec![(Contender::Yardstick(failing), None)],
            sight: Default::default(),
            seeds: Some(1),
            build: String::new(),
        };
        let error = request.run(&stop, |_| ()).unwrap_err();
        assert!(matches!(error, StudyError::Stopped), "{error}");
    }

    #[test]
    fn memory_that_was_released_is_read_from_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("again.toml");
        let text = r#"
            description = "a test"
            memory = "64MiB"
            [[process]]
            name = "again"
            [[process.area]]
            name = "heap"
            size = "4MiB"
            [[process.area]]
            name = "live"
            size = "512KiB"
            [[process.area]]
            name = "arena"
            size = "512KiB"
            [[process.phase]]
            populate = ["heap"]
            release = ["heap"]
            repeat = 3
            [[process.phase]]
            populate = ["live"]
            [[process.phase]]
            populate = ["arena"]
            release = ["arena"]
            repeat = 3
            [[process.phase]]
            populate = ["live"]
        "#;
        std::fs::write(&path, text).unwrap();
        // What is released takes no memory from what is live.
        let rows = rows(&path.to_string_lossy(), "300p", "");
        for (policy, accesses, faults, _) in &rows[1..] {
            let expected = 3 * 1024 + 128 + 3 * 128 + 128;
            assert_eq!((*accesses, *faults), (expected, 0), "{policy}");
        }
    }

    #[test]
    fn yardsticks_count_as_they_do_on_a_trace_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.trace");
        let pages: Vec<u64> = (0..20_000u64).map(|n| n * n % 1009 + n % 7).collect();
        let text: Vec<String> = pages.iter().map(u64::to_string).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
        let trace = DenseTrace::from_pages(&pages);
        // A first touch of anonymous memory reads nothing.
        for (way, first_touches) in [("", 0), ("access=anon", trace.page_count() as u64)] {
            let rows = rows(&path.to_string_lossy(), "300p", way);
            assert!(!rows[0].3, "the kernel's are known");
            for (policy, accesses, faults, is_null) in &rows[1..] {
                let alone = yardstick::by_name(policy).unwrap().misses(&trace, 300);
                assert_eq!(*accesses, 20_000);
                assert_eq!(*faults, alone - first_touches, "{policy} {way}");
                assert!(is_null);
            }
        }
    }

    #[test]
    fn yardsticks_run_on_workloads() {
        for workload in ["kv", "forkers", "mixed-6144"] {
            let rows = rows(workload, "20M", "");
            let [classic, opt, lru, arc] = &rows[..] else {
                panic!("{rows:?}");
            };
            for other in [classic, lru, arc] {
                assert!(0 < opt.2 && opt.2 < other.2, "{workload}: {rows:?}");
            }
            let has_all = rows.iter().all(|row| row.1 == rows[0].1);
            assert!(has_all, "{workload}: {rows:?}");
        }
    }
}
