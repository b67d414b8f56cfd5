// SPDX-License-Identifier: Apache-2.0
//! The screen as text, drawn with the test backend.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use agewise_cli::prices::Costs;
use agewise_host::container::Container;
use agewise_host::untrusted::Untrusted;
use agewise_policy::whatif::{Curve, Curves, Estimate, PERCENTS, Point, Prices};

use super::*;
use crate::command::watch::followed::{Known, Of};
use crate::command::watch::sample::Sample;
use crate::command::watch::view::Outcome;

const MIB: u64 = 1 << 20;

fn row(name: &str, ages_mib: [u64; 4], swapped_mib: u64) -> Row {
    let bytes: Vec<u64> = ages_mib.iter().map(|mib| mib * MIB).collect();
    let resident: u64 = bytes.iter().sum();
    Row {
        name: name.into(),
        id: 0,
        container: None,
        pid: name.split(' ').next().and_then(|pid| pid.parse().ok()),
        ages: bytes,
        anon_bytes: resident / 4 * 3,
        file_bytes: resident - resident / 4 * 3,
        swapped_bytes: swapped_mib * MIB,
        dirty_bytes: 0,
        runs_guests: false,
        trouble: None,
    }
}

fn sample() -> Sample {
    let mut gone = row("/system.slice/gone.service", [0; 4], 0);
    gone.trouble = Some("cgroup /system.slice/gone.service has been removed".to_owned());
    Sample {
        rows: vec![
            row("/system.slice/database.service", [512, 256, 128, 1024], 64),
            row("/", [600, 300, 200, 1500], 64),
            row(
                "/user.slice/user-1000.slice/a-session-with-a-long-name.scope",
                [3, 0, 0, 90],
                0,
            ),
            row("/system.slice/tiny\u{1b}[31m.service", [1, 0, 0, 0], 0),
            gone,
        ],
        bounds_ms: vec![2000, 10_000, 60_000],
        observed_ms: 83_456,
        interval_ms: 2000,
        core_percent: 0.27,
        place_gone: false,
        total_bytes: 2600 * MIB,
        ..Sample::default()
    }
}

fn screen(view: &mut View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().to_string()
}

fn press(view: &mut View, code: KeyCode) -> Outcome {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn view() -> View {
    let mut view = View::new(false, false);
    view.show(sample());
    view
}

#[test]
fn cgroups_at_80_columns() {
    insta::assert_snapshot!(screen(&mut view(), 80, 24));
}

#[test]
fn cgroups_at_140_columns() {
    insta::assert_snapshot!(screen(&mut view(), 140, 12));
}

#[test]
fn help_fits_80_columns() {
    let mut view = view();
    press(&mut view, KeyCode::Char('?'));
    insta::assert_snapshot!(screen(&mut view, 80, 24));
    press(&mut view, KeyCode::Char('x'));
    assert!(!view.has_help);
}

#[test]
fn a_narrow_screen_keeps_the_names() {
    insta::assert_snapshot!(screen(&mut view(), 40, 6));
}

#[test]
fn no_screen_is_too_small() {
    for (width, height) in [(1, 1), (5, 3), (20, 5), (40, 6), (79, 2)] {
        for keys in ["", "?", "\t", "w", "f"] {
            let mut view = view();
            for key in keys.chars() {
                let _ = press(&mut view, KeyCode::Char(key));
            }
            screen(&mut view, width, height);
        }
    }
}

#[test]
fn the_selected_line_is_on_the_screen() {
    let mut view = view();
    let many = (0..100)
        .map(|i| row(&format!("{i} many"), [i, 0, 0, 0], 0))
        .collect();
    view.show(Sample {
        rows: many,
        ..sample()
    });
    press(&mut view, KeyCode::End);
    assert!(screen(&mut view, 80, 10).contains(" 0 many"));
    press(&mut view, KeyCode::Home);
    assert!(screen(&mut view, 80, 10).contains(" 99 many"));
}

#[test]
fn a_line_stays_selected_when_others_overtake_it() {
    let mut view = view();
    press(&mut view, KeyCode::Down);
    let name = view.sample().rows[view.selected()].name.clone();
    let mut later = sample();
    later.rows.push(row("/new", [9000, 0, 0, 0], 0));
    view.show(later);
    assert_eq!(view.sample().rows[view.selected()].name, name);
}

#[test]
fn orders_follow_their_names() {
    let mut view = view();
    let mut firsts = Vec::new();
    for _ in 0..6 {
        firsts.push((view.order_name(), view.sample().rows[0].name.clone()));
        press(&mut view, KeyCode::Char('s'));
    }
    assert_eq!(firsts[0], ("resident", "/".into()));
    assert_eq!(firsts[5], ("name", "/".into()));
    assert_eq!(view.order_name(), "resident");
    press(&mut view, KeyCode::Char('r'));
    assert!(
        view.sample().rows[0]
            .name
            .terminal()
            .to_string()
            .contains("gone")
    );
}

#[test]
fn one_goes_into_cgroups_and_processes_and_back() {
    let mut view = view();
    assert_eq!(press(&mut view, KeyCode::Enter), Outcome::Moved);
    assert_eq!(*view.place(), Place::ProcessesOf("/".into()));
    view.show(Sample {
        rows: vec![row("17 sh", [1, 2, 3, 4], 0)],
        ..sample()
    });
    assert_eq!(press(&mut view, KeyCode::Enter), Outcome::Moved);
    assert_eq!(
        *view.place(),
        Place::Mappings {
            pid: 17,
            name: "17 sh".into()
        }
    );
    view.show(Sample {
        rows: vec![row("[heap]", [1, 2, 3, 4], 0)],
        ..sample()
    });
    insta::assert_snapshot!(screen(&mut view, 80, 8));
    assert_eq!(press(&mut view, KeyCode::Enter), Outcome::Stay);
    view.show(Sample {
        place_gone: true,
        rows: Vec::new(),
        ..sample()
    });
    assert!(screen(&mut view, 80, 8).contains("It is gone"));
    assert_eq!(press(&mut view, KeyCode::Esc), Outcome::Moved);
    assert_eq!(press(&mut view, KeyCode::Esc), Outcome::Moved);
    assert_eq!(press(&mut view, KeyCode::Esc), Outcome::Stay);
    assert_eq!(*view.place(), Place::Subjects);
    assert_eq!(press(&mut view, KeyCode::Tab), Outcome::Moved);
    assert_eq!(*view.place(), Place::Processes);
    assert_eq!(press(&mut view, KeyCode::Char('q')), Outcome::Quit);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(control_c), Outcome::Quit);
}

#[test]
fn colours_are_used_only_where_they_may_be() {
    for has_color in [false, true] {
        let mut view = View::new(has_color, false);
        view.show(sample());
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut view)).unwrap();
        let is_colored = |cell: &ratatui::buffer::Cell| cell.fg != ratatui::style::Color::Reset;
        let buffer = terminal.backend().buffer();
        assert_eq!(buffer.content().iter().any(is_colored), has_color);
    }
}

/// A target that waits below half of its resident size, with no upper bound below a fifth.
fn known() -> Known {
    let faults = |percent: u16| Estimate {
        low: 0.0,
        likely: 20.0 * f64::from(50_u16.saturating_sub(percent)),
        high: match percent {
            ..20 => f64::INFINITY,
            _ => 25.0 * f64::from(60_u16.saturating_sub(percent)),
        },
    };
    let curve = Curve {
        points: PERCENTS.map(|percent| Point {
            faults: [faults(percent), Estimate::default()],
        }),
    };
    Known {
        curves: Some(Curves {
            full_bytes: 640 * MIB,
            observed_ms: 62_000,
            unknown_per_second: 3.25,
            seen_per_second: 0.5,
            uses_per_second: 900.0,
            unused_bytes: 34 * MIB,
            beyond_bytes: 0,
            curves: [curve.clone(), curve],
            reuse: None,
        }),
        looks: 41,
        has_files: false,
        is_gone: false,
        costs: Costs {
            prices: Prices::exact(5100.0, 150_000.0),
            anon_source: "measured",
            file_source: "usual for an SSD",
        },
    }
}

#[test]
fn w_shows_what_less_memory_would_cost() {
    let mut view = view();
    press(&mut view, KeyCode::Down);
    assert_eq!(press(&mut view, KeyCode::Char('w')), Outcome::Stay);
    let database = Of::Subject("/system.slice/database.service".into());
    assert_eq!(view.asked().map(|(of, _)| of), Some(&database));
    assert!(screen(&mut view, 80, 24).contains("from the next look on"));
    view.known = Some(Known {
        curves: None,
        looks: 4,
        ..known()
    });
    assert!(screen(&mut view, 80, 24).contains("look 4 of 10"));
    view.known = Some(known());
    let shown = screen(&mut view, 80, 24);
    for part in [
        "With less memory: /system.slice/database.service",
        "  640.0 MiB  100%        0.0       0.0   0.000 %   0.000 % ",
        "  256.0 MiB   40%      200.0     500.0   0.102 %   0.255 % ###",
        "   64.0 MiB   10%      800.0         ?   0.408 %         ? ##########",
        "62 s counted. As it is, 0.5 pages per second came back.",
        "Not known: 34.0 MiB was not used meanwhile",
        "Most files it maps are charged to other cgroups",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Any key closes it; the last curve is kept until another one is asked for.
    press(&mut view, KeyCode::Down);
    assert!(!screen(&mut view, 80, 24).contains("faults/s"));
    press(&mut view, KeyCode::Char('w'));
    assert!(screen(&mut view, 80, 24).contains("62 s counted"));
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::Up);
    press(&mut view, KeyCode::Char('w'));
    assert!(!screen(&mut view, 80, 24).contains("62 s counted"));
    assert_eq!(
        view.asked().map(|(of, _)| of),
        Some(&Of::Subject("/".into()))
    );
}

#[test]
fn the_curve_of_one_that_is_gone_says_so() {
    let mut view = view();
    press(&mut view, KeyCode::Char('w'));
    view.known = Some(Known {
        is_gone: true,
        ..known()
    });
    assert!(screen(&mut view, 80, 24).contains("62 s counted, then it was gone"));
    view.known = Some(Known {
        is_gone: true,
        curves: None,
        ..known()
    });
    assert!(screen(&mut view, 80, 24).contains("nothing is known of it"));
    // There is another one of its name now.
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::Char('w'));
    assert!(view.known.is_none());
    // Of one that only was, the last curve is kept.
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::End);
    press(&mut view, KeyCode::Char('w'));
    view.known = Some(Known {
        is_gone: true,
        ..known()
    });
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::Char('w'));
    assert!(view.known.is_some());
}

#[test]
fn of_rows_of_one_name_the_selected_one_stays_selected() {
    let mapping = |id, mib| Row {
        id,
        ..row("libc.so.6", [mib, 0, 0, 0], 0)
    };
    let shown = |rows| Sample { rows, ..sample() };
    let mut view = View::new(false, true);
    view.show(shown(vec![mapping(1, 30), mapping(2, 20), mapping(3, 10)]));
    press(&mut view, KeyCode::Down);
    view.show(shown(vec![mapping(1, 30), mapping(2, 5), mapping(3, 10)]));
    assert_eq!(view.sample().rows[view.selected()].id, 2);
}

#[test]
fn a_mapping_has_the_curve_of_its_process() {
    let mut view = View::new(false, true);
    view.show(Sample {
        rows: vec![row("17 sh", [1, 2, 3, 4], 0)],
        ..sample()
    });
    press(&mut view, KeyCode::Enter);
    view.show(Sample {
        rows: vec![row("[heap]", [1, 2, 3, 4], 0)],
        ..sample()
    });
    press(&mut view, KeyCode::Char('w'));
    assert_eq!(view.asked(), Some(&(Of::Process(17), "17 sh".into())));
}

#[test]
fn without_a_line_there_is_no_curve() {
    let mut view = View::new(false, false);
    press(&mut view, KeyCode::Char('w'));
    assert_eq!((view.asked(), view.has_curve), (None, false));
}

#[test]
fn containers_and_pods_have_their_own_names() {
    let named = |container: Option<&str>, id: Option<&str>| Container {
        namespace: Some("shop".into()),
        pod: Some("web-0".into()),
        container: container.map(Into::into),
        container_id: id.map(Into::into),
        image: None,
    };
    let path = format!("/kubepods.slice/cri-containerd-{}.scope", "a1".repeat(32));
    let mut rows = vec![row(&path, [5, 0, 0, 0], 0); 3];
    rows[0].container = Some(named(Some("ng\u{1b}inx"), Some("a1")));
    rows[1].container = Some(named(None, Some("b2")));
    rows[2].container = Some(named(None, None));
    let mut view = view();
    view.show(Sample { rows, ..sample() });
    let shown = screen(&mut view, 110, 8);
    for name in [
        r"shop/web-0/ng\x1binx ",
        "shop/web-0 (sandbox) ",
        "shop/web-0  ",
    ] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    // Only an id is known, so the path is more informative.
    assert_eq!(
        Row {
            container: Some(Container {
                container_id: Some("a1".into()),
                ..Container::default()
            }),
            ..row(&path, [5, 0, 0, 0], 0)
        }
        .label(),
        Untrusted::from(path)
    );
}

/// Shows the files of the selected line.
fn show_files(view: &mut View, sees_mappings: bool) {
    let mut file = row("/var/lib/db/\u{1b}[31mdata", [4, 0, 12, 48], 0);
    file.dirty_bytes = 3 * MIB;
    let rows = vec![
        row("/usr/lib/libc.so.6", [2, 0, 0, 0], 0),
        file,
        row("tmpfs:/scratch (shared memory)", [0, 0, 0, 6], 0),
    ];
    view.show(Sample {
        rows,
        files: Some(FilesShown {
            count: 5321,
            sees_mappings,
        }),
        total_bytes: 1800 * MIB,
        ..sample()
    });
}

#[test]
fn f_shows_the_files_of_the_selected_line() {
    let mut view = view();
    press(&mut view, KeyCode::Down);
    assert_eq!(press(&mut view, KeyCode::Char('f')), Outcome::Moved);
    let database = "/system.slice/database.service";
    assert_eq!(
        *view.place(),
        Place::Files {
            of: Of::Subject(database.into()),
            name: database.into()
        }
    );
    show_files(&mut view, true);
    insta::assert_snapshot!(screen(&mut view, 120, 8));
    // Swap is of no file; dirty memory takes its place, also as an order.
    for _ in 0..4 {
        press(&mut view, KeyCode::Char('s'));
    }
    assert_eq!(view.order_name(), "dirty");
    assert!(screen(&mut view, 120, 8).contains("s by dirty"));
    // A file has neither files nor a curve, and nothing in it to open.
    for key in [KeyCode::Char('f'), KeyCode::Enter, KeyCode::Char('w')] {
        assert_eq!(press(&mut view, key), Outcome::Stay);
    }
    assert!(view.asked().is_none());
    show_files(&mut view, false);
    assert!(screen(&mut view, 120, 8).contains("seen (not through mappings) for"));
    assert_eq!(press(&mut view, KeyCode::Esc), Outcome::Moved);
    assert_eq!(*view.place(), Place::Subjects);
}

#[test]
fn a_process_has_the_files_it_uses() {
    let files_of_17 = Place::Files {
        of: Of::Process(17),
        name: "17 sh".into(),
    };
    for way in [&[][..], &[KeyCode::Enter]] {
        let mut view = View::new(false, true);
        let show = |view: &mut View, name| {
            view.show(Sample {
                rows: vec![row(name, [1, 2, 3, 4], 0)],
                ..sample()
            });
        };
        show(&mut view, "17 sh");
        for key in way {
            press(&mut view, *key);
            show(&mut view, "[heap]");
        }
        press(&mut view, KeyCode::Char('f'));
        assert_eq!(*view.place(), files_of_17);
    }
    // Also where the process is a target of its own.
    let mut view = View::new(false, false);
    view.show(Sample {
        rows: vec![row("17 sh", [1, 2, 3, 4], 0)],
        ..sample()
    });
    press(&mut view, KeyCode::Char('f'));
    assert_eq!(*view.place(), files_of_17);
}

#[test]
fn why_there_are_no_files_is_told() {
    let mut view = view();
    press(&mut view, KeyCode::Char('f'));
    view.show(Sample {
        trouble: Some("the page cache cannot be read: no BTF\u{1b}".to_owned()),
        bounds_ms: sample().bounds_ms,
        ..Sample::default()
    });
    let shown = screen(&mut view, 80, 8);
    assert!(shown.contains(r" the page cache cannot be read: no BTF\x1b. Esc goes back."));
}
