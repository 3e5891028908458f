//! The table of ranks: the place and speed of each, and the readings of its GPU.

use std::fmt::Write as _;

use super::tables;
use record::statistics::percentile;
use record::text::number_format;
use record::{RankRecord, Record};

/// Maximum number of rows: with more ranks, those found slow and those that take the longest.
const ROWS_MAX: usize = 32;

const HEADINGS: [&str; 9] =
    ["rank", "host", "NIC", "own ms", "found slow", "matmul", "power", "SM clock", "throttled"];

/// Number of columns that do not need a GPU.
const WITHOUT_GPU: usize = 6;

/// Builds the table; nothing for a single rank, which the rest of the page covers.
pub(super) fn table(record: &Record) -> String {
    if record.ranks.len() < 2 {
        return String::new();
    }
    let mut ranks: Vec<&RankRecord> = record.ranks.iter().collect();
    if ranks.len() > ROWS_MAX {
        let order = |rank: &RankRecord| (rank.straggler.is_some(), own_ms(rank).unwrap_or(0.0));
        ranks.sort_by(|a, b| order(b).partial_cmp(&order(a)).expect("finite times"));
        ranks.truncate(ROWS_MAX);
    }
    let has_gpus = record.ranks.iter().any(|rank| rank.gpu.is_some());
    let columns = if has_gpus { HEADINGS.len() } else { WITHOUT_GPU };
    let mut text = "<div class=\"wide scroll\">".to_owned();
    if ranks.len() < record.ranks.len() {
        let (shown, all) = (ranks.len(), record.ranks.len());
        let _ = write!(
            text,
            "<p class=\"dim\">{shown} of {all} ranks: those that were found slow, and those that \
             take the longest for their own part of a step.</p>"
        );
    }
    let rows = ranks.into_iter().map(|rank| row(rank).into_iter().take(columns));
    text += &tables::columns(&HEADINGS[..columns], rows, |_| false);
    text + "</div>"
}

fn row(rank: &RankRecord) -> [String; HEADINGS.len()] {
    let known = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
    let gauge = |name: &str| Some(rank.gpu.as_ref()?.gauges.get(name)?.mean);
    let slow = rank.straggler.map(|it| {
        let percent = number_format::percent(it.slower_share);
        format!("{} by {percent} from step {}", it.kind.name(), it.since_step)
    });
    let rate = rank.sniffed.map(|it| it.matmul_flops_per_second);
    let throttled =
        rank.gpu.as_ref().and_then(|gpu| gpu.held_down()).map(|held| match held.join(", ") {
            reasons if reasons.is_empty() => "no".to_owned(),
            reasons => reasons,
        });
    [
        rank.rank.to_string(),
        rank.host.clone(),
        known(rank.nic.clone()),
        known(own_ms(rank).map(number_format::milliseconds)),
        slow.unwrap_or_else(|| "no".to_owned()),
        known(rate.map(|rate| number_format::scaled(rate, "FLOP/s"))),
        known(gauge("power_watts").map(|watts| format!("{watts:.0} W"))),
        known(gauge("sm_clock_hertz").map(|clock| number_format::scaled(clock, "Hz"))),
        known(throttled),
    ]
}

/// Median of its own time of a step.
fn own_ms(rank: &RankRecord) -> Option<f64> {
    let mut own = rank.times.as_ref()?.own_ms.clone();
    own.sort_by(f64::total_cmp);
    percentile(&own, 50.0)
}
