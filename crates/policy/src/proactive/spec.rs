// SPDX-License-Identifier: Apache-2.0
//! The text form of a policy: `age:10s/40s`, `pressure`, `cost:stall=0.1%`, `budget:512M`.

use std::fmt;
use std::str::FromStr;

use super::arguments::Arguments;
use super::{Entry, GuardParams, POLICIES, Policy, SpecError};

/// A policy with its parameters and those of its guard, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    text: String,
    index: usize,
}

impl Spec {
    /// The policy's place in [`POLICIES`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name of the policy.
    pub fn name(&self) -> &'static str {
        POLICIES[self.index].name
    }

    pub(super) fn build(&self) -> (Box<dyn Policy>, GuardParams) {
        build(&self.text).expect("a spec is checked where it is made")
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        let (name, _) = split(text);
        let index = find(name)?;
        build(text)?;
        Ok(Spec {
            text: text.to_owned(),
            index,
        })
    }
}

/// Splits the text into name and arguments.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((name, rest)) => (name, Some(rest)),
        None => (text, None),
    }
}

fn find(name: &str) -> Result<usize, SpecError> {
    let names = || POLICIES.iter().map(|entry| entry.name);
    names()
        .position(|known| known == name)
        .ok_or_else(|| SpecError::UnknownPolicy {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })
}

fn build(text: &str) -> Result<(Box<dyn Policy>, GuardParams), SpecError> {
    let (name, rest) = split(text);
    let Entry {
        name, usage, build, ..
    } = &POLICIES[find(name)?];
    let mut arguments = Arguments::parse(name, usage, rest)?;
    let (policy, guard) = build(&mut arguments)?;
    // A policy that only sets a limit moves nothing for a guard to hold back, and what is above a
    // budget has to go in any case.
    let guard = match policy.shrinks() {
        Some(_) => guard,
        None if policy.pace().hold.is_some() => guard.with(&mut arguments)?,
        None => guard
            .with(&mut arguments)?
            .with_backing_off(&mut arguments)?,
    };
    arguments.finish()?;
    Ok((policy, guard))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn what_the_manual_shows_is_accepted() {
        for text in [
            "age:10s/40s",
            "age:500ms/1m,rate=64M/s,floor=256M,backoff=off",
            "pressure",
            "pressure:some=0.2%,probe=1%,period=6s",
            "cost",
            "cost:stall=0.05%,price=1%,min_age=5s",
            "budget:512M",
            "budget:1.5GiB,step=16ms,swap_free=5%",
            "budget:1G,by=heat,measure=kernel_first",
            "shrink:max_wait=0.2%,least=64M",
        ] {
            let spec: Spec = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(spec.to_string(), text);
            assert_eq!(spec.name(), text.split(':').next().unwrap());
            assert!(spec.build().0.pace().decide_ms > 0);
        }
    }

    #[test]
    fn errors_name_the_key_and_the_range() {
        assert_eq!(
            error("ages:1s/2s"),
            "no proactive policy is called \"ages\"; there are age, pressure, cost, budget, shrink"
        );
        assert_eq!(error("age"), "age is written age:OLDER_THAN/EVERY");
        assert_eq!(error("age:10s"), "age is written age:OLDER_THAN/EVERY");
        assert_eq!(
            error("age:10/40s"),
            "age: older_than is \"10\", which is not a duration with its unit, like 500ms, 10s or \
             2m"
        );
        assert_eq!(
            error("age:0s/40s"),
            "age: older_than is 0ms, which is not within 1ms and 604800000ms"
        );
        assert_eq!(
            error("age:10s/40s,rate=0"),
            "age: rate is 0, which is not within 4096 and 1099511627776"
        );
        assert_eq!(
            error("age:10s/40s,floor=1M,floor=2M"),
            "age: floor is given twice"
        );
        assert!(error("cost:stal=1%").starts_with("cost: unknown key \"stal\"; it knows stall, "));
        assert_eq!(
            error("cost:stall=-1%"),
            "cost: stall is \"-1%\", which is not a share, like 0.1% or 0.001"
        );
        assert_eq!(error("budget"), "budget is written budget:BYTES");
        assert_eq!(
            error("pressure:backoff=maybe"),
            "pressure: backoff is \"maybe\", which is not on or off"
        );
        assert_eq!(
            error("shrink:floor=1M"),
            "shrink: unknown key \"floor\"; it knows max_wait, least"
        );
        for key in ["backoff", "regret", "window", "harm", "start", "pressure"] {
            let said = error(&format!("budget:1G,{key}=1"));
            let expected = format!("budget: unknown key \"{key}\"; it knows step, ");
            assert!(said.starts_with(&expected), "{said}");
        }
        assert!(error("cost:,").starts_with("cost is written"));
    }

    proptest::proptest! {
        /// Any text is parsed or refused without a panic.
        #[test]
        fn anything_is_parsed_or_refused(text in ".{0,40}") {
            let _ = text.parse::<Spec>();
        }

        #[test]
        fn anything_after_a_name_is_parsed_or_refused(
            name in "age|pressure|cost|budget",
            rest in "[0-9a-z.,/=%:]{0,30}",
        ) {
            let _ = format!("{name}:{rest}").parse::<Spec>();
        }
    }
}
