// SPDX-License-Identifier: Apache-2.0
//! Reducing a case that fails.

use super::case::Case;
use super::play::Failure;

/// Runs a case.
type Play<'a> = &'a dyn Fn(&Case) -> Result<(), Failure>;

/// Returns the smallest case found that still fails, and its failure. It removes the steps after
/// the failure, then runs of steps, long ones first, then settings. `tries` limits the number of
/// runs.
pub fn shrink(case: Case, failure: Failure, tries: usize, play: Play<'_>) -> (Case, Failure) {
    let mut best = Best {
        case,
        failure,
        tries,
        play,
    };
    best.cut();
    let mut run = best.case.steps.len().next_power_of_two() / 2;
    while run > 0 && best.tries > 0 {
        let mut at = 0;
        let before = best.case.steps.len();
        while at < best.case.steps.len() {
            let mut fewer = best.case.clone();
            fewer.steps.drain(at..(at + run).min(fewer.steps.len()));
            if !best.take(fewer) {
                at += run;
            }
        }
        // Steps that one removal made superfluous are removed in the next pass with the same
        // length.
        if best.case.steps.len() == before {
            run /= 2;
        }
    }
    for at in (0..best.case.shape.set.len()).rev() {
        let mut fewer = best.case.clone();
        fewer.shape.set.remove(at);
        best.take(fewer);
    }
    for at in (0..best.case.shape.profile.len()).rev() {
        let mut fewer = best.case.clone();
        fewer.shape.profile.remove(at);
        best.take(fewer);
    }
    (best.case, best.failure)
}

struct Best<'a> {
    case: Case,
    failure: Failure,
    tries: usize,
    play: Play<'a>,
}

impl Best<'_> {
    /// Replaces the best case with this one if it fails.
    fn take(&mut self, case: Case) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let Err(failure) = (self.play)(&case) else {
            return false;
        };
        (self.case, self.failure) = (case, failure);
        self.cut();
        true
    }

    /// Removes the steps after the failure.
    fn cut(&mut self) {
        self.case.steps.truncate(self.failure.step);
    }
}
