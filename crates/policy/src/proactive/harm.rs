// SPDX-License-Identifier: Apache-2.0
//! How much harm moving memory may do: an account of refaults, in bytes.
//!
//! Moving memory out makes programs fault that did not fault before. Their previous faults do not
//! show how much harm that is: most had none. Their accesses, the pages found accessed, do. A page
//! found accessed stands for at least one access, so if refaults are at most `harm` of them, there
//! are at most that many more faults per operation that touches a page (mostly far fewer: a page is
//! accessed many times between two looks, so this is no rule for policies that know from ages what
//! comes back).
//!
//! - The account starts with a fee of 1 % of what is resident: nobody knows what will come back
//!   before something has been taken. The fee is credited again over an hour.
//! - `harm` of the bytes found accessed is credited; refaults are debited.
//! - Memory that is out may come back, at the recent rate, over twice the window. As much of it may
//!   be out as the account covers, without limit if less than 5 % is expected back: that is cold.

/// The share of resident memory that may come back before anything is known.
const FEE_SHARE: f64 = 0.01;
/// The fee is credited again over this time, in s.
const FEE_AGAIN_S: f64 = 3600.0;
/// The account holds at most this many fees: a long calm does not license great harm.
const FEES_MAX: f64 = 5.0;
/// This share of a fee counts as already come back: that nothing came back yet does not prove a
/// rate of 0.
const PRIOR_FEES: f64 = 0.01;
/// If less than this share returns within twice the window, the memory is cold and no risk to the
/// account.
const COLD_SHARE: f64 = 0.05;

/// The account of one target.
#[derive(Clone, Debug)]
pub(super) struct Harm {
    share: f64,
    window_s: f64,
    fee: f64,
    /// Bytes; below 0 if more came back than was covered.
    balance: f64,
    /// Bytes that came back recently, and the byte-seconds out during which they could have.
    returned: f64,
    exposed: f64,
    /// Whether accesses were ever seen: otherwise nothing is known, and nothing is limited.
    is_known: bool,
}

impl Harm {
    /// An empty account. `share` is the part of the accessed memory that may refault. What came
    /// back is forgotten by half in half of `window_s`.
    pub(super) fn new(share: f64, window_s: f64) -> Self {
        Harm {
            share,
            window_s,
            fee: 0.0,
            balance: 0.0,
            returned: 0.0,
            exposed: 0.0,
            is_known: false,
        }
    }

    /// Time passed in which this many bytes were out and this many came back. `accessed_bytes` were
    /// found by a look, if there was one.
    pub(super) fn pass(
        &mut self,
        passed_s: f64,
        resident_bytes: u64,
        out_bytes: f64,
        refaulted_bytes: f64,
        accessed_bytes: Option<u64>,
    ) {
        // Based on the most that was ever resident: moving memory out must not make the account
        // smaller.
        let fee = (resident_bytes as f64 * FEE_SHARE).max(self.fee);
        self.balance += fee - self.fee + fee * passed_s / FEE_AGAIN_S;
        self.fee = fee;
        let keep = 0.5f64.powf(passed_s * 2.0 / self.window_s);
        self.exposed = self.exposed * keep + (out_bytes + refaulted_bytes) * passed_s;
        self.returned = self.returned * keep + refaulted_bytes;
        self.is_known |= accessed_bytes.is_some();
        self.balance += self.share * accessed_bytes.unwrap_or(0) as f64 - refaulted_bytes;
        self.balance = self.balance.min(FEES_MAX * self.fee);
    }

    /// The share of what is out that is expected back within twice the window.
    fn expected_back(&self) -> f64 {
        if self.exposed <= 0.0 {
            return 1.0;
        }
        let per_s = (self.returned + PRIOR_FEES * self.fee) / self.exposed;
        1.0 - (-per_s * 2.0 * self.window_s).exp()
    }

    /// Bytes that may go in addition to those already out; `None` means no limit.
    pub(super) fn room_bytes(&self, out_bytes: f64) -> Option<u64> {
        let back = self.expected_back();
        if self.share >= 1.0 || !self.is_known || back < COLD_SHARE {
            return None;
        }
        Some((self.balance / back - out_bytes).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIDENT: u64 = 1 << 30;

    #[test]
    fn a_first_fee_is_all_that_is_risked_until_it_is_known_what_comes_back() {
        let mut harm = Harm::new(0.005, 60.0);
        harm.pass(0.0, RESIDENT, 0.0, 0.0, None);
        assert_eq!(harm.room_bytes(0.0), None, "no accesses were ever seen");
        harm.pass(1.0, RESIDENT, 0.0, 0.0, Some(0));
        let fee = RESIDENT as f64 * FEE_SHARE;
        let room = harm.room_bytes(0.0).unwrap() as f64;
        assert!((0.99..1.01).contains(&(room / fee)), "{room}");
        assert!(harm.room_bytes(fee).unwrap() < fee as u64 / 100);
    }

    #[test]
    fn what_stays_away_lifts_the_limit_and_what_comes_back_ends_it() {
        let mut harm = Harm::new(0.005, 60.0);
        harm.pass(1.0, RESIDENT, 0.0, 0.0, Some(0));
        let fee = RESIDENT as f64 * FEE_SHARE;
        let mut stays = harm.clone();
        for _ in 0..40 {
            stays.pass(1.0, RESIDENT, fee, 0.0, Some(0));
        }
        assert_eq!(stays.room_bytes(fee), None);
        let mut out = fee;
        for _ in 0..40 {
            harm.pass(1.0, RESIDENT, out, out * 0.1, Some(0));
            out *= 0.9;
        }
        assert!(harm.room_bytes(out).unwrap() < fee as u64 / 10);
    }

    #[test]
    fn accesses_pay_for_refaults_but_only_so_much_is_saved_up() {
        let mut harm = Harm::new(0.005, 60.0);
        for _ in 0..10_000 {
            harm.pass(1.0, RESIDENT, 0.0, 0.0, Some(RESIDENT));
        }
        let most = FEES_MAX * FEE_SHARE * RESIDENT as f64;
        assert_eq!(harm.room_bytes(0.0).unwrap(), most as u64);
    }
}
