// SPDX-License-Identifier: Apache-2.0
//! The state of the viewer: place, sort order and selected row, independent of the terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use agewise_host::untrusted::Untrusted;

use super::followed::{Known, Of};
use super::sample::{Place, Row, Sample};

/// The sort order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Most resident memory first.
    Resident,
    /// Most cold memory first.
    Cold,
    /// Most anon memory first.
    Anon,
    /// Most file memory first.
    File,
    /// Most memory in swap first; of files, the most dirty memory.
    Swapped,
    Name,
}

impl Order {
    const ALL: [Order; 6] = [
        Order::Resident,
        Order::Cold,
        Order::Anon,
        Order::File,
        Order::Swapped,
        Order::Name,
    ];

    /// The displayed name of the order.
    pub fn name(self) -> &'static str {
        match self {
            Order::Resident => "resident",
            Order::Cold => "cold",
            Order::Anon => "anon",
            Order::File => "file",
            Order::Swapped => "swap",
            Order::Name => "name",
        }
    }
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The same rows stay on the screen.
    Stay,
    /// Other rows must be taken.
    Moved,
    Quit,
}

/// The state of the screen.
#[derive(Debug)]
pub struct View {
    sample: Sample,
    places: Vec<Place>,
    order: Order,
    is_reversed: bool,
    selected: usize,
    paused: bool,
    /// Number of the age bound above which memory counts as cold.
    cold_bin: usize,
    /// Whether help is shown.
    pub has_help: bool,
    /// Whether the what-if curve is shown.
    pub has_curve: bool,
    /// The target whose curve was last asked for, and its displayed name.
    asked: Option<(Of, Untrusted)>,
    /// What is known about that target's curve.
    pub known: Option<Known>,
    /// Whether colours may be used.
    pub has_color: bool,
    /// A note about the access source.
    pub note: Option<String>,
    /// The first row on the screen; updated when drawing.
    pub offset: usize,
}

impl View {
    /// A view of all subjects, or of all processes.
    pub fn new(has_color: bool, processes: bool) -> Self {
        View {
            sample: Sample::default(),
            places: vec![if processes {
                Place::Processes
            } else {
                Place::Subjects
            }],
            order: Order::Resident,
            is_reversed: false,
            selected: 0,
            paused: false,
            cold_bin: 1,
            has_help: false,
            has_curve: false,
            asked: None,
            known: None,
            has_color,
            note: None,
            offset: 0,
        }
    }

    /// The current place.
    pub fn place(&self) -> &Place {
        self.places.last().expect("never empty")
    }

    /// The sample on display.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Whether files are shown.
    pub fn shows_files(&self) -> bool {
        matches!(self.place(), Place::Files { .. })
    }

    /// The displayed name of the sort order.
    pub fn order_name(&self) -> &'static str {
        match self.order {
            Order::Swapped if self.shows_files() => "dirty",
            order => order.name(),
        }
    }

    /// Whether the sort order is reversed.
    pub fn is_reversed(&self) -> bool {
        self.is_reversed
    }

    /// Whether the display is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The index of the selected row.
    pub fn selected(&self) -> usize {
        self.selected
    }

    /// The number of the bound above which memory counts as cold.
    pub fn cold_bin(&self) -> usize {
        self.cold_bin
            .min(self.sample.bounds_ms.len().saturating_sub(1))
    }

    /// Shows a new sample and keeps the selected row selected.
    pub fn show(&mut self, sample: Sample) {
        let row = self.sample.rows.get(self.selected);
        let key = row.map(|row| (row.name.clone(), row.id));
        self.sample = sample;
        self.sort();
        let is_it = |row: &Row| {
            key.as_ref()
                .is_some_and(|(name, id)| (&row.name, row.id) == (name, *id))
        };
        if let Some(at) = self.sample.rows.iter().position(is_it) {
            self.selected = at;
        }
        self.selected = self.selected.min(self.sample.rows.len().saturating_sub(1));
    }

    fn sort(&mut self) {
        let (order, bin) = (self.order, self.cold_bin());
        let key = |row: &Row| match order {
            Order::Resident => row.resident_bytes(),
            Order::Cold => row.older_bytes(bin),
            Order::Anon => row.anon_bytes,
            Order::File => row.file_bytes,
            Order::Swapped => row.swapped_or_dirty_bytes(),
            Order::Name => 0,
        };
        self.sample.rows.sort_by(|a, b| {
            key(b)
                .cmp(&key(a))
                .then_with(|| a.label().cmp(&b.label()))
                .then_with(|| a.name.cmp(&b.name))
        });
        if self.is_reversed {
            self.sample.rows.reverse();
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Outcome::Quit,
                _ => Outcome::Stay,
            };
        }
        if self.has_help || self.has_curve {
            (self.has_help, self.has_curve) = (false, false);
            return Outcome::Stay;
        }
        let last = self.sample.rows.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Char('w') => self.ask(),
            KeyCode::Char('f') => return self.enter_files(),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            KeyCode::Char('s') => self.next_order(),
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.sort();
            }
            KeyCode::Char('+' | '=') => self.set_cold_bin(self.cold_bin() + 1),
            KeyCode::Char('-') => self.set_cold_bin(self.cold_bin().saturating_sub(1)),
            KeyCode::Tab | KeyCode::Char('t') => return self.toggle(),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => return self.enter(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return self.leave(),
            _ => {}
        }
        Outcome::Stay
    }

    /// The target whose what-if curve was last asked for, and its displayed name.
    pub fn asked(&self) -> Option<&(Of, Untrusted)> {
        self.asked.as_ref()
    }

    /// The target of the selected row, and its displayed name: for a mapping, its process; for a
    /// file, none.
    fn target(&self) -> Option<(Of, Untrusted)> {
        let row = self.sample.rows.get(self.selected);
        match (self.place(), row) {
            (Place::Mappings { pid, name }, _) => Some((Of::Process(*pid), name.clone())),
            (Place::Subjects, Some(row)) => Some((Of::Subject(row.name.clone()), row.label())),
            (_, Some(row)) => Some((Of::Process(row.pid?), row.label())),
            (_, None) => None,
        }
    }

    /// Asks for the curve of the selected target. If it is the same as before, its simulation
    /// continues, unless that one is gone and there is another of its name.
    fn ask(&mut self) {
        let Some(of) = self.target() else {
            return;
        };
        let row = self.sample.rows.get(self.selected);
        let is_back = self.known.as_ref().is_some_and(|known| known.is_gone)
            && row.is_some_and(|row| row.trouble.is_none());
        if is_back || self.asked.as_ref() != Some(&of) {
            (self.asked, self.known) = (Some(of), None);
        }
        self.has_curve = true;
    }

    fn next_order(&mut self) {
        let at = Order::ALL
            .iter()
            .position(|order| *order == self.order)
            .unwrap_or(0);
        self.order = Order::ALL[(at + 1) % Order::ALL.len()];
        self.is_reversed = false;
        self.sort();
    }

    fn set_cold_bin(&mut self, bin: usize) {
        self.cold_bin = bin.min(self.sample.bounds_ms.len().saturating_sub(1));
        self.sort();
    }

    fn toggle(&mut self) -> Outcome {
        let place = match self.places[0] {
            Place::Subjects => Place::Processes,
            _ => Place::Subjects,
        };
        self.go(vec![place])
    }

    fn enter(&mut self) -> Outcome {
        let Some(row) = self.sample.rows.get(self.selected) else {
            return Outcome::Stay;
        };
        let next = match (self.place(), row.pid) {
            (Place::Mappings { .. } | Place::Files { .. }, _) => return Outcome::Stay,
            (_, Some(pid)) => Place::Mappings {
                pid,
                name: row.name.clone(),
            },
            (Place::Subjects, None) => Place::ProcessesOf(row.name.clone()),
            (_, None) => return Outcome::Stay,
        };
        self.open(next)
    }

    /// Opens the files of the selected target; of a target that is a process, those of the process.
    fn enter_files(&mut self) -> Outcome {
        let Some((of, name)) = self.target() else {
            return Outcome::Stay;
        };
        let row = self.sample.rows.get(self.selected);
        let of = match (of, row.and_then(|row| row.pid)) {
            (Of::Subject(_), Some(pid)) => Of::Process(pid),
            (of, _) => of,
        };
        self.open(Place::Files { of, name })
    }

    fn open(&mut self, next: Place) -> Outcome {
        let mut places = self.places.clone();
        places.push(next);
        self.go(places)
    }

    fn leave(&mut self) -> Outcome {
        match self.places.len() {
            1 => Outcome::Stay,
            length => self.go(self.places[..length - 1].to_vec()),
        }
    }

    fn go(&mut self, places: Vec<Place>) -> Outcome {
        self.places = places;
        self.selected = 0;
        self.offset = 0;
        self.sample.rows.clear();
        Outcome::Moved
    }
}
