// SPDX-License-Identifier: Apache-2.0
//! Making a case that fails small.

use super::case::Case;
use super::play::Failure;

/// Carries a case out.
type Play<'a> = &'a dyn Fn(&Case) -> Result<(), Failure>;

/// The smallest case found that still fails, with what it then fails of. Steps behind the failure
/// go, then runs of steps, long ones first, then settings. `tries` bounds how often it is played.
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
        // What one cut made superfluous goes by the next pass of the same length.
        if best.case.steps.len() == before {
            run /= 2;
        }
    }
    for at in (0..best.case.shape.set.len()).rev() {
        let mut fewer = best.case.clone();
        fewer.shape.set.remove(at);
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
    /// Takes a case in place of the best, if it fails.
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

    /// What comes after the failure has no part in it.
    fn cut(&mut self) {
        self.case.steps.truncate(self.failure.step);
    }
}
