// SPDX-License-Identifier: Apache-2.0
//! What in a configuration lets the daemon start, but is probably not meant.

use super::{Act, Config, Metrics, PathGlob};

impl Config {
    /// What lets the daemon start, but is probably not meant: one line each.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let ledger = self.protect.ledger.as_ref().map(|_| {
            "protect.ledger is no longer used: the ledger is in the state directory \
             (STATE_DIRECTORY); remove the key"
                .to_owned()
        });
        let rules = (0..self.act.len()).flat_map(|at| self.rule_doubts(at));
        self.textfile_doubt()
            .into_iter()
            .chain(ledger)
            .chain(self.metrics.unserved())
            .chain(rules)
            .collect()
    }

    fn rule_doubts(&self, at: usize) -> Vec<String> {
        let act = &self.act[at];
        let say =
            |what: String| format!("act: rule {} (policy = \"{}\") {what}", at + 1, act.policy);
        let sorted = (act.sort_first && (act.is_held_ahead() || act.sets_limit())).then(|| {
            "has sort_first, which has no effect with this policy: remove the key".to_owned()
        });
        let earlier = (1..).zip(&self.act[..at]);
        let covered = act.cgroups.iter().filter_map(|pattern| {
            let covers = |act: &Act| act.cgroups.iter().any(|glob| glob.covers(pattern));
            let (number, _) = earlier.clone().find(|(_, act)| covers(act))?;
            Some(format!(
                "never applies to '{pattern}': rule {number} comes first and matches it; put the \
                 narrower rule first"
            ))
        });
        sorted.into_iter().chain(covered).map(say).collect()
    }
}

impl Metrics {
    /// Says which keys have no effect because nothing is served.
    fn unserved(&self) -> Option<String> {
        let default = Metrics::default();
        let set = [
            ("listen", self.listen != default.listen),
            ("allow_remote", self.allow_remote != default.allow_remote),
            ("hosts", self.hosts != default.hosts),
        ];
        let (key, _) = set
            .into_iter()
            .find(|(_, is_set)| *is_set && !self.enabled)?;
        Some(format!(
            "metrics.{key} has no effect: nothing is served; set metrics.enabled = true"
        ))
    }
}

impl PathGlob {
    /// Whether it certainly matches every path that `narrower` matches.
    fn covers(&self, narrower: &PathGlob) -> bool {
        let (own, text) = (self.to_string(), narrower.to_string());
        if own == text {
            return true;
        }
        // Alternatives and classes would take more than a few examples.
        let is_plain = |text: &str| !text.contains(['[', '{', '?', '\\', '!']);
        if !is_plain(&own) || !is_plain(&text) {
            return false;
        }
        // Names that only wildcards match. `**` stands for any number of them; between two
        // slashes also for none.
        const NAME: &str = "\u{1}";
        let matcher = self.0.compile_matcher();
        [("**", NAME), ("**", "\u{1}/\u{1}/\u{1}"), ("/**/", "/")]
            .iter()
            .map(|(wildcard, names)| text.replace(wildcard, names))
            .all(|path| matcher.is_match(path.replace("**", NAME).replace('*', NAME)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubts(text: &str) -> Vec<String> {
        Config::parse(text).unwrap().doubts()
    }

    #[test]
    fn a_textfile_in_no_directory_is_a_doubt() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().display();
        let of = |place: &str| doubts(&format!("metrics.textfile = '{home}/{place}'"));
        assert_eq!(of("a.prom"), [""; 0]);
        let doubts = of("none/a.prom");
        assert!(doubts[0].starts_with("metrics.textfile: "), "{doubts:?}");
        assert!(doubts[0].contains("no directory"), "{doubts:?}");
    }

    #[test]
    fn an_address_at_which_nothing_is_served_is_a_doubt() {
        let said = doubts("metrics.listen = '127.0.0.1:9000'");
        assert!(
            said[0].starts_with("metrics.listen has no effect"),
            "{said:?}"
        );
        let served = "metrics = { enabled = true, listen = '127.0.0.1:9000' }";
        assert_eq!(doubts(served), [""; 0]);
        assert_eq!(doubts("metrics.listen = '127.0.0.1:9779'"), [""; 0]);
    }

    #[test]
    fn sort_first_is_a_doubt_where_it_has_no_effect() {
        for (policy, is_one) in [
            ("age:10s/40s", false),
            ("budget:64M", true),
            ("shrink", true),
        ] {
            let text = format!("[[act]]\ncgroups = ['/a']\npolicy = '{policy}'\nsort_first = true");
            let said = doubts(&text);
            assert_eq!(!said.is_empty(), is_one, "{said:?}");
            assert!(said.iter().all(|said| said.contains("rule 1 ")), "{said:?}");
        }
    }

    #[test]
    fn a_rule_that_an_earlier_one_covers_is_a_doubt() {
        for (first, second, is_covered) in [
            ("/**", "/a", true),
            ("/a/**", "/a/*/b", true),
            ("/a/**", "/a/**/b", true),
            ("/a", "/a", true),
            ("/{a,b}", "/{a,b}", true),
            ("/a/*", "/a/**", false),
            ("/a/*/**", "/a/**", false),
            ("/a/**/c/**", "/a/**/c", false),
            ("/a/**", "/a", false),
            ("/a*", "/*", false),
            ("/a/b*", "/a/*b", false),
            ("/{a,b}", "/a", false),
            ("/a", "/**", false),
        ] {
            let rule = |pattern| format!("[[act]]\ncgroups = ['{pattern}']\npolicy = 'cost'\n");
            let said = doubts(&(rule(first) + &rule(second)));
            assert_eq!(
                said.len(),
                usize::from(is_covered),
                "{first} {second}: {said:?}"
            );
            assert!(
                said.iter().all(|said| said.contains("rule 1 comes first")),
                "{said:?}"
            );
        }
    }
}
