// SPDX-License-Identifier: Apache-2.0
//! The arguments after the name of a policy: `10s/40s,rate=64M,floor=256M`.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::units;

/// What is wrong with the text of a policy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SpecError {
    /// No policy has this name.
    #[error("no proactive policy is called {name:?}; there are {known}")]
    UnknownPolicy {
        /// What was written.
        name: String,
        /// The policies that exist.
        known: String,
    },
    /// The policy does not know this key.
    #[error("{policy}: unknown key {key:?}; it knows {known}")]
    UnknownKey {
        /// The policy.
        policy: &'static str,
        /// What was written.
        key: String,
        /// Its keys.
        known: String,
    },
    /// A key occurs twice.
    #[error("{policy}: {key} is given twice")]
    Twice {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
    },
    /// Something that must follow the name is missing, or there is too much of it.
    #[error("{policy} is written {usage}")]
    Usage {
        /// The policy.
        policy: &'static str,
        /// How it is written.
        usage: &'static str,
    },
    /// Not a value of this kind.
    #[error("{policy}: {key} is {value:?}, which is not {kind}")]
    NotA {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What it should be.
        kind: &'static str,
    },
    /// The value is out of range.
    #[error("{policy}: {key} is {value}, which is not within {min} and {max}")]
    Range {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// Minimum.
        min: String,
        /// Maximum.
        max: String,
    },
}

const DURATION: &str = "a duration with its unit, like 500ms, 10s or 2m";
const SIZE: &str = "a size, like 512M or 1.5G (powers of two)";
const SHARE: &str = "a share, like 0.1% or 0.001";
const SWITCH: &str = "on or off";

/// The arguments of one policy, taken one by one; any that remain are an error.
#[derive(Debug)]
pub struct Arguments<'a> {
    policy: &'static str,
    usage: &'static str,
    positional: Option<&'a str>,
    named: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Arguments<'a> {
    /// Splits at commas. A part without `=` is positional and may only come first.
    pub fn parse(
        policy: &'static str,
        usage: &'static str,
        text: Option<&'a str>,
    ) -> Result<Self, SpecError> {
        let mut arguments = Arguments {
            policy,
            usage,
            positional: None,
            named: Vec::new(),
            known: Vec::new(),
        };
        for (at, part) in text.into_iter().flat_map(|t| t.split(',')).enumerate() {
            match part.trim().split_once('=') {
                Some((key, value)) => {
                    let (key, value) = (key.trim(), value.trim());
                    if arguments.named.iter().any(|(other, _)| *other == key) {
                        let key = key.to_owned();
                        return Err(SpecError::Twice { policy, key });
                    }
                    arguments.named.push((key, value));
                }
                None if at == 0 && !part.trim().is_empty() => {
                    arguments.positional = Some(part.trim());
                }
                None => return Err(SpecError::Usage { policy, usage }),
            }
        }
        Ok(arguments)
    }

    /// The first part, if it has no key.
    pub fn positional(&mut self) -> Option<&'a str> {
        self.positional.take()
    }

    /// The error that shows the syntax of the policy.
    pub fn usage(&self) -> SpecError {
        SpecError::Usage {
            policy: self.policy,
            usage: self.usage,
        }
    }

    /// Checks that everything was taken.
    pub fn finish(self) -> Result<(), SpecError> {
        if self.positional.is_some() {
            return Err(self.usage());
        }
        match self.named.first() {
            None => Ok(()),
            Some((key, _)) => Err(SpecError::UnknownKey {
                policy: self.policy,
                key: (*key).to_owned(),
                known: self.known.join(", "),
            }),
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.named.iter().position(|(name, _)| *name == key)?;
        Some(self.named.remove(at).1)
    }

    fn not_a(&self, key: &str, value: &str, kind: &'static str) -> SpecError {
        SpecError::NotA {
            policy: self.policy,
            key: key.to_owned(),
            value: value.to_owned(),
            kind,
        }
    }

    fn within<T: PartialOrd + Copy>(
        &self,
        key: &str,
        value: T,
        range: &RangeInclusive<T>,
        show: impl Fn(T) -> String,
    ) -> Result<T, SpecError> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(SpecError::Range {
            policy: self.policy,
            key: key.to_owned(),
            value: show(value),
            min: show(*range.start()),
            max: show(*range.end()),
        })
    }

    /// Parses a duration; returns ms.
    pub fn duration_of(
        &self,
        key: &'static str,
        text: &str,
        range_ms: RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        let ms = units::duration_ms(text).ok_or_else(|| self.not_a(key, text, DURATION))?;
        self.within(key, ms, &range_ms, |ms| format!("{ms}ms"))
    }

    /// Takes a duration in ms.
    pub fn duration(
        &mut self,
        key: &'static str,
        default_ms: u64,
        range_ms: RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        self.take(key)
            .map_or(Ok(default_ms), |text| self.duration_of(key, text, range_ms))
    }

    /// Parses a size; returns bytes.
    pub fn size_of(
        &self,
        key: &'static str,
        text: &str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        let bytes = size_bytes(text).ok_or_else(|| self.not_a(key, text, SIZE))?;
        self.within(key, bytes, &range, |bytes| bytes.to_string())
    }

    /// Takes a size in bytes.
    pub fn size(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        self.take(key)
            .map_or(Ok(default), |text| self.size_of(key, text, range))
    }

    /// Takes a share: `0.1%` or `0.001`.
    pub fn share(
        &mut self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, SpecError> {
        let Some(text) = self.take(key) else {
            return Ok(default);
        };
        let (number, scale) = match text.strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        let share = plain_number(number).ok_or_else(|| self.not_a(key, text, SHARE))? / scale;
        self.within(key, share, &range, |share| format!("{share}"))
    }

    /// Takes a plain number.
    pub fn number(
        &mut self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, SpecError> {
        let Some(text) = self.take(key) else {
            return Ok(default);
        };
        let number = plain_number(text).ok_or_else(|| self.not_a(key, text, "a number"))?;
        self.within(key, number, &range, |number| format!("{number}"))
    }

    /// Takes one of several values by name; the default is that of the type.
    pub fn one_of<T: Copy + Default>(
        &mut self,
        key: &'static str,
        names: &[(&str, T)],
        kind: &'static str,
    ) -> Result<T, SpecError> {
        let Some(text) = self.take(key) else {
            return Ok(T::default());
        };
        let found = names.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| self.not_a(key, text, kind))
    }

    /// Takes `on` or `off`.
    pub fn switch(&mut self, key: &'static str, default: bool) -> Result<bool, SpecError> {
        match self.take(key) {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(text) => Err(self.not_a(key, text, SWITCH)),
        }
    }
}

/// Parses digits and a point, nothing else: no signs, infinities or exponents.
fn plain_number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then(|| text.parse().ok()).flatten()
}

/// Parses a size, which `/s` may follow; returns bytes.
fn size_bytes(text: &str) -> Option<u64> {
    units::size_bytes(text.strip_suffix("/s").unwrap_or(text)).ok()
}
