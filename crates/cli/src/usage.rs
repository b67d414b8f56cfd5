// SPDX-License-Identifier: Apache-2.0
//! Arguments that turn out to be wrong only after the command line was parsed, such as two that
//! contradict each other. They end a command like those that the parser refuses.

use std::path::{Path, PathBuf};

use agewise_host::process::ProcessError;
use thiserror::Error;

use crate::observe::EXIT_TARGETS_GONE;
use crate::signal::Stop;

/// Exit status for a wrong argument, the one the parser of the command line uses.
pub const EXIT_WRONG_ARGUMENT: u8 = 2;

/// An argument cannot be meant as it was given: no retry and no privilege would help. The message
/// names it and says what to give instead.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct WrongArgument(pub String);

/// Every target was gone before anything was known of it, or before anything could be done.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TargetsGone(pub String);

/// A signal ended the command before there was anything to print.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted(pub i32);

/// Returns a [`WrongArgument`] from a function; arguments as for `format!`.
#[macro_export]
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::usage::WrongArgument(format!($($text)*)).into())
    };
}

/// Refuses to write a file over an input, or two outputs to one file. Pipes and devices may be
/// given more than once; inputs may be names that are no files.
///
/// # Errors
/// [`WrongArgument`], with the path.
pub fn ensure_apart<'a>(
    inputs: impl IntoIterator<Item = &'a (impl AsRef<Path> + 'a)>,
    outputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), WrongArgument> {
    let identity = |path: &Path| -> Option<PathBuf> {
        match path.canonicalize() {
            Ok(path) => path.is_file().then_some(path),
            // It is yet to be created.
            Err(_) => {
                let above = path.parent().filter(|above| *above != Path::new(""));
                let above = above.unwrap_or(Path::new(".")).canonicalize().ok()?;
                Some(above.join(path.file_name()?))
            }
        }
    };
    let mut taken: Vec<(PathBuf, &str)> = Vec::new();
    for path in inputs {
        taken.extend(identity(path.as_ref()).map(|path| (path, "input and output are")));
    }
    for output in outputs {
        let Some(path) = identity(output) else {
            continue;
        };
        if let Some((_, which)) = taken.iter().find(|(other, _)| *other == path) {
            let text = format!("{}: {which} the same file", output.display());
            return Err(WrongArgument(text));
        }
        taken.push((path, "two outputs are"));
    }
    Ok(())
}

/// The exit status of a command that failed with `error`: `otherwise`, unless an argument was
/// wrong, the targets are gone, or it was interrupted.
pub fn exit_status(error: &anyhow::Error, otherwise: u8) -> u8 {
    let is_no_pid = matches!(error.downcast_ref(), Some(ProcessError::InvalidPid { .. }));
    if is_no_pid || error.is::<WrongArgument>() {
        return EXIT_WRONG_ARGUMENT;
    }
    if let Some(Interrupted(signal)) = error.downcast_ref() {
        return Stop::exit_code(*signal);
    }
    match error.is::<TargetsGone>() {
        true => EXIT_TARGETS_GONE,
        false => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_wrong_argument_has_a_status_of_its_own_whatever_is_said_around_it() {
        fn refused(share: f64) -> anyhow::Result<()> {
            if share > 1.0 {
                refuse!("--share {share}: give at most 1");
            }
            anyhow::bail!("no luck")
        }
        let status = |share| exit_status(&refused(share).context("lab").unwrap_err(), 1);
        assert_eq!((status(1.5), status(0.5)), (2, 1));
        let gone = anyhow::Error::new(TargetsGone("it is gone".to_owned())).context("size");
        assert_eq!(exit_status(&gone, 1), 3);
        let cut = anyhow::anyhow!("nothing is known yet").context(Interrupted(2));
        assert_eq!(exit_status(&cut, 1), 130);
        assert_eq!(
            refused(1.5).unwrap_err().to_string(),
            "--share 1.5: give at most 1"
        );
    }

    #[test]
    fn nothing_is_written_over_an_input_or_another_output() {
        let dir = tempfile::tempdir().unwrap();
        let [there, new, link] = ["there", "new", "link"].map(|name| dir.path().join(name));
        std::fs::write(&there, "").unwrap();
        std::os::unix::fs::symlink(&there, &link).unwrap();
        let null = PathBuf::from("/dev/null");
        let roundabout = dir
            .path()
            .join("../")
            .join(dir.path().file_name().unwrap())
            .join("new");
        for (inputs, outputs, refused) in [
            (vec![&there], vec![&new], None),
            (vec![&there], vec![&there], Some("input and output are")),
            (vec![&there], vec![&link], Some("input and output are")),
            (
                vec![&there],
                vec![&new, &roundabout],
                Some("two outputs are"),
            ),
            (vec![&null], vec![&null, &null], None),
            (vec![&new], vec![], None),
        ] {
            let said = ensure_apart(inputs, outputs).err().map(|error| error.0);
            match refused {
                None => assert_eq!(said, None),
                Some(which) => {
                    assert!(said.as_ref().is_some_and(|s| s.contains(which)), "{said:?}")
                }
            }
        }
    }
}
