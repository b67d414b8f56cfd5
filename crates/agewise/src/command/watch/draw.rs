// SPDX-License-Identifier: Apache-2.0
//! Draws the screen.

use std::time::Duration;

use agewise_host::untrusted::{Untrusted, clean};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::bar;
use super::curve;
use super::sample::{FilesShown, Place, Row, Sample};
use super::view::View;
use agewise_cli::units::{bytes_text, duration_text};

/// Width of a column of byte counts.
const BYTES_WIDTH: usize = 11;
/// The least width of a name: the bar gets what is left.
const NAME_MIN: usize = 12;
/// Width of the column with percentages.
const COLD_WIDTH: usize = 7;

/// Width of the windows with help and the what-if curve.
const WINDOW_WIDTH: u16 = 72;
/// Height of the what-if window: table, remarks and frame.
const CURVE_HEIGHT: u16 = 22;

const HELP: &str = "\
 Up Down j k PgUp PgDn   select          s   next order
 Home g / End G          first / last    r   reverse the order
 Enter Right l           open            + - threshold for cold
 Esc Left Backspace      go back         p   pause the picture
 Tab t                   cgroups or processes
 w                       what if it had less memory
 f                       its files in the page cache
 q Ctrl-C                quit            ?   this help

 The bar shows the ages of resident memory, the youngest on the
 left. Memory that was never seen accessed counts as old as the
 observation: at first everything idle looks young. >10s is the
 share that is older. ANON goes to swap, FILE is mapped files,
 with --files all that is charged to a cgroup, mapped or not.
 Files are those charged to a cgroup, or those that a process has
 open or mapped; without --files, uses of mappings are not seen.
 Containers and pods are shown by their own names.
 Observation continues while the picture is paused.";

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let [title, header, body, legend, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let columns = Columns::of(frame.area().width.into());
    frame.render_widget(Paragraph::new(title_line(view)), title);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(columns.header(view)).style(style), header);
    draw_rows(frame, body, view, &columns);
    frame.render_widget(Paragraph::new(legend_line(view)), legend);
    let keys_text = format!(
        " q quit  ? help  w what if  f files{}  Esc back  s by {}{}  Tab {}  p {}",
        match view.shows_files() {
            true => "",
            false => "  Enter in",
        },
        view.order_name(),
        if view.is_reversed() {
            " (reversed)"
        } else {
            ""
        },
        match view.place() {
            Place::Subjects | Place::ProcessesOf(_) => "processes",
            _ => "cgroups",
        },
        if view.is_paused() { "resume" } else { "pause" },
    );
    frame.render_widget(Paragraph::new(keys_text), keys);
    if view.has_help {
        let height = HELP.lines().count() as u16 + 2;
        draw_window(frame, " Help ", HELP, height);
    } else if let (true, Some((_, name))) = (view.has_curve, view.asked()) {
        let title = format!(" With less memory: {} ", name.terminal());
        draw_window(
            frame,
            &title,
            &curve::text(view.known.as_ref()),
            CURVE_HEIGHT,
        );
    }
}

fn title_line(view: &View) -> Line<'static> {
    let sample = view.sample();
    let place = match view.place() {
        Place::Subjects => "targets".to_owned(),
        Place::Processes => "processes".to_owned(),
        Place::ProcessesOf(name) => format!("processes of {}", name.terminal()),
        Place::Mappings { name, .. } => format!("mappings of {}", name.terminal()),
        Place::Files { name, .. } => files_title(name, sample),
    };
    let state = match (view.is_paused(), sample.place_gone) {
        (_, true) => "  GONE",
        (true, _) => "  PAUSED",
        _ => "",
    };
    Line::from(vec![
        Span::styled(
            format!(" agewise  {place}"),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Span::raw(format!(
            "  {} in all, {} for {}, every {}, {:.1}% of a core",
            bytes_text(sample.total_bytes),
            match sample.files {
                Some(FilesShown {
                    sees_mappings: false,
                    ..
                }) => "seen (not through mappings)",
                _ => "seen",
            },
            duration_text(Duration::from_millis(sample.observed_ms / 1000 * 1000)),
            duration_text(Duration::from_millis(sample.interval_ms)),
            sample.core_percent,
        )),
        Span::styled(state, Style::new().add_modifier(Modifier::REVERSED)),
    ])
}

/// Says how many of the files are shown, unless it is all of them.
fn files_title(name: &Untrusted, sample: &Sample) -> String {
    let count = sample.files.map_or(0, |files| files.count);
    match sample.rows.len() {
        shown if (shown as u64) < count => {
            format!("largest {shown} of {count} files of {}", name.terminal())
        }
        _ => format!("files of {}", name.terminal()),
    }
}

/// The widths of the columns.
struct Columns {
    name: usize,
    has_types: bool,
    /// Whether there is room for what is in swap, or dirty.
    has_second: bool,
    bar: usize,
}

impl Columns {
    fn of(width: usize) -> Self {
        let (has_types, has_second) = (width >= 110, width >= 60);
        let sizes = 1 + usize::from(has_second) + 2 * usize::from(has_types);
        let left = width.saturating_sub(BYTES_WIDTH * sizes + COLD_WIDTH + 3);
        let bar = (left / 2).clamp(8, 80).min(left.saturating_sub(NAME_MIN));
        Columns {
            name: left - bar,
            has_types,
            has_second,
            bar,
        }
    }

    fn header(&self, view: &View) -> String {
        let bounds = &view.sample().bounds_ms;
        let cold = bounds
            .get(view.cold_bin())
            .map_or("COLD".to_owned(), |ms| format!(">{}", age(*ms)));
        let types = if self.has_types {
            format!("{:>BYTES_WIDTH$}{:>BYTES_WIDTH$}", "ANON", "FILE")
        } else {
            String::new()
        };
        let (named, second) = match view.shows_files() {
            true => ("FILE", "DIRTY"),
            false => ("NAME", "SWAP"),
        };
        format!(
            " {:<name$}{:>BYTES_WIDTH$}{types}{}{:>COLD_WIDTH$}  {}",
            named,
            "RESIDENT",
            self.second(second),
            cold,
            "AGES young to old",
            name = self.name,
        )
    }

    fn second(&self, text: &str) -> String {
        match self.has_second {
            true => format!("{text:>BYTES_WIDTH$}"),
            false => String::new(),
        }
    }

    fn row(&self, view: &View, row: &Row) -> Line<'static> {
        let resident = row.resident_bytes();
        let types = if self.has_types {
            format!(
                "{:>BYTES_WIDTH$}{:>BYTES_WIDTH$}",
                bytes_text(row.anon_bytes),
                bytes_text(row.file_bytes)
            )
        } else {
            String::new()
        };
        let cold = match resident {
            0 => "-".to_owned(),
            _ if row.ages.is_empty() => "?".to_owned(),
            _ => {
                let cold = row.older_bytes(view.cold_bin());
                format!("{}%", u128::from(cold) * 100 / u128::from(resident))
            }
        };
        let mut spans = vec![Span::raw(format!(
            " {}{:>BYTES_WIDTH$}{types}{}{cold:>COLD_WIDTH$}  ",
            fit(&row.label().terminal().to_string(), self.name),
            bytes_text(resident),
            self.second(&match row.swapped_or_dirty_bytes() {
                0 => "-".to_owned(),
                bytes => bytes_text(bytes),
            }),
        ))];
        if let (0, Some(trouble)) = (resident, &row.trouble) {
            spans.push(Span::raw(fit(&clean(trouble), self.bar)));
            return Line::from(spans);
        }
        for (bin, width) in bar::cells(&row.ages, self.bar).into_iter().enumerate() {
            let shade = bar::shade(bin, row.ages.len());
            let style = bar::style(shade, view.has_color);
            spans.push(Span::styled(bar::pattern(shade).repeat(width), style));
        }
        Line::from(spans)
    }
}

fn draw_rows(frame: &mut Frame<'_>, area: Rect, view: &mut View, columns: &Columns) {
    let height = usize::from(area.height).max(1);
    let selected = view.selected();
    view.offset = view
        .offset
        .clamp(selected.saturating_sub(height - 1), selected);
    let sample = view.sample();
    if sample.rows.is_empty() {
        let text = match (&sample.trouble, sample.place_gone) {
            (Some(trouble), _) => format!(" {}. Esc goes back.", clean(trouble)),
            (_, true) => " It is gone. Esc goes back.".to_owned(),
            _ if sample.bounds_ms.is_empty() => " Looking for the first time.".to_owned(),
            _ if sample.is_over => " Nothing is left to watch: it has ended.".to_owned(),
            _ => " Nothing here.".to_owned(),
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
        return;
    }
    let rows = sample
        .rows
        .iter()
        .enumerate()
        .skip(view.offset)
        .take(height);
    let lines: Vec<Line<'_>> = rows
        .map(|(number, row)| {
            let mut line = columns.row(view, row);
            if number == selected {
                line.spans[0].style = Style::new().add_modifier(Modifier::REVERSED);
            }
            line
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn legend_line(view: &View) -> Line<'static> {
    if let Some(note) = &view.note {
        return Line::from(format!(" {note}"));
    }
    let bounds = &view.sample().bounds_ms;
    let bins = bounds.len() + 1;
    let mut spans = vec![Span::raw(" ")];
    for bin in 0..bins {
        let shade = bar::shade(bin, bins);
        spans.push(Span::styled(
            bar::pattern(shade).repeat(2),
            bar::style(shade, view.has_color),
        ));
        let text = match bounds.get(bin) {
            Some(bound) => format!(" to {}  ", age(*bound)),
            None => " older".to_owned(),
        };
        spans.push(Span::raw(text));
    }
    spans.push(Span::raw(format!(
        "   {} of {}",
        (view.selected() + 1).min(view.sample().rows.len()),
        view.sample().rows.len()
    )));
    Line::from(spans)
}

fn draw_window(frame: &mut Frame<'_>, title: &str, text: &str, height: u16) {
    let area = frame.area();
    let width = area.width.min(WINDOW_WIDTH);
    let height = area.height.min(height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(text)
            .wrap(Wrap { trim: false })
            .block(Block::bordered().title(title)),
        place,
    );
}

/// Formats an age without spaces: `500ms`, `90s`, `2m`, `1h`.
fn age(ms: u64) -> String {
    for (unit_ms, unit) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
    ] {
        if ms >= unit_ms && ms.is_multiple_of(unit_ms) {
            return format!("{}{unit}", ms / unit_ms);
        }
    }
    format!("{ms}ms")
}

/// Pads or cuts `text` to exactly `width` cells. It is cut at the front, where paths are least
/// specific. Control characters in a name must not reach the terminal.
fn fit(text: &str, width: usize) -> String {
    let shown: Vec<char> = text
        .chars()
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '?'
            }
        })
        .collect();
    if shown.len() <= width {
        let text: String = shown.into_iter().collect();
        return format!("{text:<width$}");
    }
    let tail = shown.len() - width.saturating_sub(1);
    let text: String = shown[tail..].iter().collect();
    if width == 0 {
        text.chars().take(0).collect()
    } else {
        format!("<{text}")
    }
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
