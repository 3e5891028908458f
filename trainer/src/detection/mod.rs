//! How well slow ranks and slower runs are found: counts over many jobs, of recorded and of
//! synthetic step times, which are the tables of `docs/detection.md`.

mod trace;

use std::fs;
use std::path::Path;

pub(crate) use trace::{OwnMs, Trace};

/// How often each job is drawn.
pub(crate) const SEEDS: u64 = 200;

/// By how much something is slow, as a share of a rank's own time.
pub(crate) const SHARES: [f64; 4] = [0.0, 0.05, 0.1, 0.25];

/// As in tables.
pub(crate) fn percent(share: f64) -> String {
    if share == 0.0 { "nothing".to_owned() } else { format!("{:.0} %", 100.0 * share) }
}

/// By how many of the jobs a count may differ: functions such as `ln` have other last bits on other
/// processors, and a job that is near a limit is then decided differently.
const TOLERANCE: i64 = 3;

/// Whether two pages differ in nothing but counts, and in these hardly.
fn is_nearly(page: &str, other: &str) -> bool {
    let is_alike = |(left, right): (&str, &str)| match (left.parse::<i64>(), right.parse::<i64>()) {
        (Ok(left), Ok(right)) => (left - right).abs() <= TOLERANCE,
        _ => left == right,
    };
    let words = |text: &str| text.split_whitespace().count();
    words(page) == words(other)
        && page.split_whitespace().zip(other.split_whitespace()).all(is_alike)
}

#[test]
fn pages_may_differ_in_counts_a_little() {
    assert!(is_nearly("| a | 10 | b", "| a | 12 | b"));
    assert!(!is_nearly("| a | 10 |", "| a | 14 |") && !is_nearly("| a |", "| b |"));
    assert!(!is_nearly("a 1 b", "a 1"));
}

/// Rewrite with `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace detection::`.
#[test]
fn the_documented_tables_are_what_is_found() {
    let introduction = include_str!("introduction.md");
    let text = introduction
        .replace("RUNNING\n", &crate::stragglers::recorded::table())
        .replace("COMPARED\n", &crate::compare::recorded::table());
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/detection.md");
    if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let page = fs::read_to_string(path).unwrap();
    assert!(is_nearly(&page, &text), "what is found has changed:\n{page}\n{text}");
}
