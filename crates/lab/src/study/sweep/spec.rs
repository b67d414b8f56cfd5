// SPDX-License-Identifier: Apache-2.0
//! The cells of a sweep, as described by its TOML file: grids, lists of grids, random draws from
//! them, and conditions that exclude cells.

use agewise_policy::table::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet};

use agewise_policy::units::size_bytes;
use agewise_trace::suggest::nearest;
use toml::{Table, Value};

use crate::study::error::StudyError;
use crate::study::setup::expand;
use crate::workload::random::XorShift64Star;

/// Limit on the cells of a sweep.
const CELLS_MAX: usize = 1_000_000;

/// Keys that a cell can have. `set` and `options` have keys of their own: `set.swappiness`.
const KEYS: [&str; 14] = [
    "workload",
    "trace",
    "policy",
    "proactive",
    "memory",
    "swap",
    "damon",
    "seeds",
    "points",
    "sizes",
    "rate",
    "samples",
    "set",
    "options",
];

/// Keys that apply only to curves, besides a `trace`.
pub(super) const OF_CURVES: [&str; 4] = ["points", "sizes", "rate", "samples"];

/// The values given for a cell, by key. Missing keys have the defaults of `agewise lab run`, or of
/// `agewise lab curve` if there is a `trace` instead of a `workload`.
pub type Values = BTreeMap<String, String>;

/// The values of one key in a grid.
enum Axis {
    /// All values of a list.
    List(Vec<String>),
    /// A value drawn from a range.
    Range(Range),
}

/// A range of numbers, including both ends.
struct Range {
    from: f64,
    to: f64,
    kind: RangeKind,
    /// Whether each order of magnitude is equally likely.
    is_log: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum RangeKind {
    Whole,
    Number,
    /// Pages.
    Size,
}

/// What a text describes.
pub struct Described {
    /// The cells, without duplicates, in the order of the text.
    pub cells: Vec<Values>,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// The cells described by a text.
///
/// # Errors
/// Says what is wrong with the text.
pub fn cells(text: &str) -> Result<Described, StudyError> {
    let spec: Table =
        toml::from_str(text).map_err(|error| StudyError::argument(error.to_string()))?;
    let (mut all, mut grids, mut skips) = (Table::new(), Vec::new(), Vec::new());
    for (key, value) in spec {
        match key.as_str() {
            "grid" => grids = tables("grid", value)?,
            "skip" => skips = tables("skip", value)?,
            _ => {
                all.insert(key, value);
            }
        }
    }
    if grids.is_empty() {
        return Err(StudyError::argument("there is no [[grid]]"));
    }
    let all = axes(all)?;
    let skips: Vec<_> = skips.into_iter().map(condition).collect::<Result<_, _>>()?;
    let (mut cells, mut known) = (Vec::new(), BTreeSet::new());
    let mut has_matched = vec![false; skips.len()];
    let mut notes = Vec::new();
    for grid in grids {
        for cell in of_grid(grid, &all, &mut notes)? {
            let mut is_skipped = false;
            for (skip, has_matched) in skips.iter().zip(&mut has_matched) {
                let holds = holds(skip, &cell);
                *has_matched |= holds;
                is_skipped |= holds;
            }
            if !is_skipped && known.insert(cell.clone()) {
                cells.push(cell);
            }
        }
    }
    if cells.is_empty() {
        return Err(StudyError::argument("every cell is left out by a [[skip]]"));
    }
    let idle = skips.iter().zip(has_matched).filter(|(_, has)| !has);
    notes.extend(idle.map(|(skip, _)| {
        let parts = skip.iter();
        let parts = parts.map(|(key, values)| format!("{key} = {}", values.join(" or ")));
        let condition = parts.collect::<Vec<_>>().join(", ");
        format!("a [[skip]] leaves out no cell, as none has {condition}")
    }));
    Ok(Described { cells, notes })
}

fn tables(name: &str, value: Value) -> Result<Vec<Table>, StudyError> {
    let wrong = || StudyError::Argument(format!("{name}: write [[{name}]], as often as needed"));
    match value {
        Value::Array(tables) => tables
            .into_iter()
            .map(|table| table.try_into().map_err(|_| wrong()))
            .collect(),
        _ => Err(wrong()),
    }
}

/// The cells of one grid, with the values common to all grids. Adds remarks for the user to
/// `notes`.
fn of_grid(
    mut grid: Table,
    all: &BTreeMap<String, Axis>,
    notes: &mut Vec<String>,
) -> Result<Vec<Values>, StudyError> {
    let draw = count(&mut grid, "draw", 1)?;
    let draw_seed = count(&mut grid, "draw_seed", 0)?.unwrap_or(1);
    let own = axes(grid)?;
    let common = all.iter().filter(|(key, _)| !own.contains_key(*key));
    let mut axes: Vec<(&String, &Axis)> = common.chain(&own).collect();
    axes.sort_by_key(|(key, _)| place(key));
    let has = |name: &str| axes.iter().any(|(key, _)| *key == name);
    match (has("workload"), has("trace")) {
        (false, false) => {
            let what = "a [[grid]] has no workload, and no trace for curves";
            return Err(StudyError::argument(what));
        }
        (true, true) => {
            return Err(StudyError::argument(
                "a [[grid]] has a workload or a trace, not both",
            ));
        }
        _ if !has("policy") => return Err(StudyError::argument("a [[grid]] has no policy")),
        _ => {}
    }
    let Some(draw) = draw else {
        return product(&axes);
    };
    let cells = drawn(&axes, draw, draw_seed);
    if (cells.len() as u64) < draw {
        let found = cells.len();
        notes.push(format!(
            "draw = {draw}, but only {found} different cells were found"
        ));
    }
    Ok(cells)
}

/// Sort position of a key. Workloads and traces change slowest, so that each is read once; the
/// other keys follow in the listed order.
fn place(key: &str) -> usize {
    let key = key.split('.').next().unwrap_or(key);
    KEYS.iter()
        .position(|known| *known == key)
        .unwrap_or(KEYS.len())
}

fn count(grid: &mut Table, key: &str, least: i64) -> Result<Option<u64>, StudyError> {
    match grid.remove(key) {
        None => Ok(None),
        Some(Value::Integer(value)) if (least..=CELLS_MAX as i64).contains(&value) => {
            Ok(Some(value.cast_unsigned()))
        }
        Some(other) => Err(StudyError::Argument(format!(
            "{key} is a number from {least} to {CELLS_MAX}, not {other}"
        ))),
    }
}

/// The axes of a table; those under `set` and `options` are named `set.KEY` and `options.KEY`.
fn axes(table: Table) -> Result<BTreeMap<String, Axis>, StudyError> {
    let mut axes = BTreeMap::new();
    for (key, value) in table {
        if !KEYS.contains(&key.as_str()) {
            let near = nearest(&key, KEYS).map(|near| format!("; did you mean `{near}`?"));
            return Err(StudyError::Argument(format!(
                "unknown key `{key}`{}",
                near.unwrap_or_else(|| {
                    let keys = KEYS.join(", ");
                    format!("; there are {keys}, and in a [[grid]] draw and draw_seed")
                })
            )));
        }
        match (key.as_str(), value) {
            ("set" | "options", Value::Table(inner)) => {
                for (name, value) in inner {
                    axes.insert(format!("{key}.{name}"), axis(&name, value)?);
                }
            }
            ("set" | "options", _) => {
                return Err(StudyError::Argument(format!("write {key}.NAME = VALUE")));
            }
            ("workload" | "trace", value) => {
                let Axis::List(names) = axis(&key, value)? else {
                    return Err(StudyError::Argument(format!("{key}: no range, but names")));
                };
                axes.insert(key, Axis::List(expand(&names)?));
            }
            (_, value) => {
                let axis = axis(&key, value)?;
                axes.insert(key, axis);
            }
        }
    }
    Ok(axes)
}

fn axis(key: &str, value: Value) -> Result<Axis, StudyError> {
    match value {
        Value::Array(values) if values.is_empty() => {
            Err(StudyError::Argument(format!("{key} has no value")))
        }
        Value::Array(values) => {
            let values = values.into_iter().map(|value| single(key, value));
            Ok(Axis::List(values.collect::<Result<_, _>>()?))
        }
        Value::Table(table) => range(key, &table).map(Axis::Range),
        value => Ok(Axis::List(vec![single(key, value)?])),
    }
}

/// A single value, in the form that `agewise lab run` takes.
fn single(key: &str, value: Value) -> Result<String, StudyError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) if number.is_finite() => Ok(number.to_string()),
        Value::Boolean(value) => Ok(u8::from(value).to_string()),
        other => Err(StudyError::Argument(format!("{key} cannot be {other}"))),
    }
}

fn range(key: &str, table: &Table) -> Result<Range, StudyError> {
    let wrong = || {
        StudyError::Argument(format!(
            "{key}: a range is {{ from = A, to = B }}, A not above B, with scale = \"log\" if \
             wanted; numbers, or sizes such as \"16M\""
        ))
    };
    let end = |name: &str| match table.get(name) {
        Some(Value::Integer(number)) => Some((*number as f64, RangeKind::Whole)),
        Some(Value::Float(number)) => Some((*number, RangeKind::Number)),
        Some(Value::String(size)) => {
            let pages = size_bytes(size).ok()? / PAGE_BYTES;
            Some((pages as f64, RangeKind::Size))
        }
        _ => None,
    };
    let ((from, one), (to, other)) = end("from").zip(end("to")).ok_or_else(wrong)?;
    let kind = match (one, other) {
        (one, other) if one == other => one,
        (RangeKind::Size, _) | (_, RangeKind::Size) => return Err(wrong()),
        _ => RangeKind::Number,
    };
    let is_log = match table.get("scale").map(Value::as_str) {
        None => false,
        Some(Some("log")) if from > 0.0 => true,
        Some(_) => return Err(wrong()),
    };
    let is_known = |name: &String| ["from", "to", "scale"].contains(&name.as_str());
    if !table.keys().all(is_known) || from.partial_cmp(&to).is_none_or(|order| order.is_gt()) {
        return Err(wrong());
    }
    Ok(Range {
        from,
        to,
        kind,
        is_log,
    })
}

impl Range {
    /// The value at a position from 0 to 1.
    fn at(&self, place: f64) -> String {
        // All whole numbers are equally likely, including both ends.
        let (from, to) = match self.kind {
            RangeKind::Number => (self.from, self.to),
            RangeKind::Whole | RangeKind::Size => (self.from, self.to + 1.0),
        };
        let value = match self.is_log {
            true => from * (to / from).powf(place),
            false => from + (to - from) * place,
        };
        match self.kind {
            RangeKind::Number => value.clamp(self.from, self.to).to_string(),
            RangeKind::Whole => value.floor().clamp(self.from, self.to).to_string(),
            RangeKind::Size => format!("{}p", value.floor().clamp(self.from, self.to)),
        }
    }
}

/// All combinations of values; the last axis changes fastest. An empty text means that no value is
/// given.
fn product(axes: &[(&String, &Axis)]) -> Result<Vec<Values>, StudyError> {
    let mut cells = vec![Values::new()];
    for (key, axis) in axes {
        let Axis::List(values) = axis else {
            return Err(StudyError::Argument(format!(
                "{key} is a range: give the [[grid]] `draw`, the number of cells to draw"
            )));
        };
        if cells.len().saturating_mul(values.len()) > CELLS_MAX {
            return Err(StudyError::Argument(format!(
                "a [[grid]] has more than {CELLS_MAX} cells"
            )));
        }
        let with = |cell: &Values, value: &String| {
            let mut cell = cell.clone();
            if !value.is_empty() {
                cell.insert((*key).clone(), value.clone());
            }
            cell
        };
        cells = cells
            .iter()
            .flat_map(|cell| values.iter().map(move |value| with(cell, value)))
            .collect();
    }
    Ok(cells)
}

/// Draws this many different cells, or fewer if there are not enough.
fn drawn(axes: &[(&String, &Axis)], cells: u64, seed: u64) -> Vec<Values> {
    let mut random = XorShift64Star::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut drawn = BTreeSet::new();
    let mut tries = cells.saturating_mul(100);
    while (drawn.len() as u64) < cells && tries > 0 {
        tries -= 1;
        let mut cell = Values::new();
        for (key, axis) in axes {
            let place = random.unit();
            let value = match axis {
                Axis::List(values) => values[(place * values.len() as f64) as usize].clone(),
                Axis::Range(range) => range.at(place),
            };
            if !value.is_empty() {
                cell.insert((*key).clone(), value);
            }
        }
        drawn.insert(cell);
    }
    let mut cells: Vec<Values> = drawn.into_iter().collect();
    let subject = |cell: &Values| cell.get("workload").or(cell.get("trace")).cloned();
    cells.sort_by_key(subject);
    cells
}

/// A condition: for each key the values that match; a cell must have one of them.
fn condition(table: Table) -> Result<BTreeMap<String, Vec<String>>, StudyError> {
    let list = |(key, axis)| match axis {
        Axis::List(values) => Ok((key, values)),
        Axis::Range(_) => Err(StudyError::argument("a [[skip]] has values, no ranges")),
    };
    axes(table)?.into_iter().map(list).collect()
}

fn holds(condition: &BTreeMap<String, Vec<String>>, cell: &Values) -> bool {
    let is_so = |(key, values): (&String, &Vec<String>)| {
        let given = cell.get(key).map_or("", String::as_str);
        values.iter().any(|value| value == given)
    };
    condition.iter().all(is_so)
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
