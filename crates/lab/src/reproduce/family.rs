// SPDX-License-Identifier: Apache-2.0
//! The pairs of policies compared by the refault-distance benchmarks.

/// The policies before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// The classic LRU, without and with the rule.
    Classic,
    /// The current multi-gen LRU, which already has mainline's solution, without and with the rule.
    MultiGen,
    /// The multi-gen LRU of the document's time, without and with the rule.
    MultiGenThen,
    /// The same, without and with mainline's solution of 6.14 instead: a longer memory for
    /// refaults, and working-set marks that persist. The variant makes no difference.
    Mainline,
}

impl Family {
    pub(super) const ALL: [Family; 4] = [
        Family::Classic,
        Family::MultiGen,
        Family::MultiGenThen,
        Family::Mainline,
    ];

    /// Suffix of the benchmark's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Classic => "classic",
            Family::MultiGen => "mglru",
            Family::MultiGenThen => "mglru-6.12",
            Family::Mainline => "mainline-6.14",
        }
    }

    /// The two policies to compare.
    pub(super) fn policies(self, variant: &str) -> [String; 2] {
        match self {
            Family::Classic => ["classic".to_owned(), format!("classic+{variant}")],
            Family::MultiGen => ["mglru".to_owned(), format!("mglru+{variant}")],
            Family::MultiGenThen => ["mglru:6.12".to_owned(), format!("mglru+{variant}:6.12")],
            Family::Mainline => ["mglru:6.12".to_owned(), "mglru:6.14".to_owned()],
        }
    }
}
