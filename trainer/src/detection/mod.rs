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
    assert_eq!(page, text, "what is found has changed");
}
