// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const NASTY: &[u8] = b"a\x1b[31m\x07\r\n\"b\",<i>&'\\\x7f\xff\xc2\x85\xe2\x80\xae\xe2\x80\xa8";

#[test]
fn controls_and_what_is_not_utf8_are_escaped() {
    let name = Untrusted::from(NASTY);
    assert_eq!(
        name.terminal().to_string(),
        r#"a\x1b[31m\x07\x0d\x0a"b",<i>&'\\x7f\xff\u{85}\u{202e}\u{2028}"#
    );
}

#[test]
fn names_of_systemd_stay_readable_and_forged_escapes_do_not() {
    let name = |text: &str| Untrusted::from(text).terminal().to_string();
    assert_eq!(name(r"/dev-disk\x2duuid.swap"), r"/dev-disk\x2duuid.swap");
    assert_eq!(name(r"a\x1b"), r"a\x5cx1b");
    assert_eq!(name(r"a\u{202e}"), r"a\x5cu{202e}");
    assert_eq!(name(r"a\x5cx1b"), r"a\x5cx5cx1b");
    assert_eq!(name("żółw 👩‍🚀 日本"), "żółw 👩‍🚀 日本");
}

#[test]
fn what_is_shown_gives_the_name_back() {
    let back = |bytes: &[u8]| {
        let shown = Untrusted::from(bytes).terminal().to_string();
        from_shown(OsStr::new(&shown)).as_bytes() == bytes
    };
    assert!(back(NASTY));
    for text in [
        r"/dev-disk\x2duuid",
        r"a\x1b",
        r"a\u{202e}",
        r"a\x5cx1b",
        r"a\",
        r"\u{}",
    ] {
        assert!(back(text.as_bytes()), "{text}");
    }
    assert_eq!(from_shown(OsStr::new(r"\u{zz}\x1")), r"\u{zz}\x1");
}

proptest! {
    #[test]
    fn any_name_comes_back(name in prop::collection::vec(any::<u8>(), 0..40)) {
        let shown = Untrusted::from(&name[..]).terminal().to_string();
        let back = from_shown(OsStr::new(&shown));
        prop_assert_eq!(back.as_bytes(), &name[..]);
    }
}

#[test]
fn width_and_composition_work_on_what_is_shown() {
    let name = Untrusted::from("a\nb");
    assert_eq!(format!("{:<8}|", name.terminal()), r"a\x0ab  |");
    assert_eq!(Untrusted::process(7, &name), "7 (a\nb)");
    assert_eq!(format!("{name:?}"), r#""a\x0ab""#);
}

#[test]
fn sentences_lose_controls_and_nothing_else() {
    let once = clean("no cgroup /a\x1b[2J\u{202e}\n: gone");
    assert_eq!(once, r"no cgroup /a\x1b[2J\u{202e}\x0a: gone");
    assert_eq!(clean(&once), once);
}

/// Byte strings with many of the critical bytes.
fn names() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        prop::sample::select(b"\\xu{}0157aefb\"\n\x1b,&<;".to_vec()).prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        prop::sample::select(vec![
            "\u{202e}", "\u{85}", "\u{2066}", "\u{200e}", r"\x1b", r"\u{85}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(name in names()) {
        let name = Untrusted::from(&*name);
        let value = serde_json::to_value(&name).unwrap();
        prop_assert_eq!(serde_json::from_value::<Untrusted>(value).unwrap(), name);
    }

    #[test]
    fn nothing_hidden_comes_out(name in names()) {
        let text = Untrusted::from(&*name).terminal().to_string();
        prop_assert!(!text.chars().any(is_hidden), "{:?}", text);
    }

    #[test]
    fn two_names_never_look_the_same(one in names(), other in names()) {
        prop_assume!(one != other);
        let shown = |name: &[u8]| Untrusted::from(name).terminal().to_string();
        prop_assert_ne!(shown(&one), shown(&other));
    }

    /// Printed text, used as a name in turn, prints differently unless nothing was escaped.
    #[test]
    fn no_name_forges_the_escapes_of_another(name in names()) {
        let shown = Untrusted::from(&*name).terminal().to_string();
        if shown.as_bytes() != name {
            prop_assert_ne!(Untrusted::from(&*shown).terminal().to_string(), shown);
        }
    }
}
