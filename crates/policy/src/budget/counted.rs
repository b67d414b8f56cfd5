// SPDX-License-Identifier: Apache-2.0
//! What a program and the holder of its budget consumed.
//!
//! Time is the program's: its own work, plus the greater of its CPU time in the kernel and its time
//! waiting for memory. (A fault served from compressed memory is CPU time, which the kernel also
//! counts as waiting; a fault served by a device is waiting.) CPU time spent on holding the budget
//! is weighted by the share of time in which any task on the machine waited for a CPU: on CPUs that
//! are otherwise idle it costs the program nothing, on contended CPUs it costs the full amount.

/// Monotonic counters of the program under the budget and of whoever holds the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// CPU time that the program spent in its own code, us: the work it gets done.
    pub work_us: u64,
    /// CPU time that it spent in the kernel, us.
    pub kernel_us: u64,
    /// Pages that it had to wait for.
    pub faults: u64,
    /// Time its tasks waited for memory, us.
    pub waited_us: u64,
    /// CPU time of holding the budget, us.
    pub holder_us: u64,
    /// Time in which any task of the machine waited for a CPU, us.
    pub cpu_waited_us: u64,
}

impl Counted {
    /// What was consumed since `before`; a counter that fell counts as 0.
    #[must_use]
    pub fn since(&self, before: &Counted) -> Counted {
        Counted {
            work_us: self.work_us.saturating_sub(before.work_us),
            kernel_us: self.kernel_us.saturating_sub(before.kernel_us),
            faults: self.faults.saturating_sub(before.faults),
            waited_us: self.waited_us.saturating_sub(before.waited_us),
            holder_us: self.holder_us.saturating_sub(before.holder_us),
            cpu_waited_us: self.cpu_waited_us.saturating_sub(before.cpu_waited_us),
        }
    }

    /// Adds what was consumed by another.
    pub fn add(&mut self, other: &Counted) {
        self.work_us += other.work_us;
        self.kernel_us += other.kernel_us;
        self.faults += other.faults;
        self.waited_us += other.waited_us;
        self.holder_us += other.holder_us;
        self.cpu_waited_us += other.cpu_waited_us;
    }
}

/// What the program's work cost: faults per microsecond of it; CPU time and time as multiples of
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub faults: f64,
    pub cpu: f64,
    pub time: f64,
}

impl Taken {
    pub fn of(passed_us: f64, counted: &Counted) -> Taken {
        let [work, kernel, waited, holder, cpu_waited] = [
            counted.work_us,
            counted.kernel_us,
            counted.waited_us,
            counted.holder_us,
            counted.cpu_waited_us,
        ]
        .map(|us| us as f64);
        let contended = (cpu_waited / passed_us).min(1.0);
        Taken {
            faults: counted.faults as f64 / work,
            cpu: (work + kernel + holder) / work,
            time: (work + kernel.max(waited) + contended * holder) / work,
        }
    }
}
