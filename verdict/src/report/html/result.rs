//! The headline, the main figures, and the workload with its place and time.

use std::fmt::Write as _;

use super::escape;
use crate::report::ReportData;
use crate::report::facts::{Fact, facts, status, utilizations, with_power_cap};
use record::text::number_format::{count, milliseconds, percent, scaled, thousands};
use record::{Clocks, Record};

/// One of the main figures.
struct Tile {
    name: String,
    value: String,
    /// Details in smaller letters.
    detail: String,
}

/// Formats the result as a sentence, as in "smoke: 40,960 tokens/s (step clock) on 2 ranks".
pub(super) fn headline(report: &ReportData) -> String {
    let ReportData { record, state, world, .. } = report;
    let name = &record.workload.name;
    let ranks = count(*world, "rank");
    // The record of a run that has not ended lacks its steps; its folder has them.
    let completed = record.steps.as_ref().map(|steps| count(steps.completed as usize, "step"));
    let after = completed.map_or(String::new(), |steps| format!(" after {steps}"));
    let is_injected = record.injected().next().is_some();
    match (*state, record.result_rate()) {
        ("complete", Some(rate)) => {
            format!("{name}: {} {} on {ranks}", thousands(rate), Clocks::STEP_RATE)
        }
        ("complete", None) if is_injected => {
            format!("{name} is complete on {ranks}, with injected faults")
        }
        ("complete", None) => format!("{name} is complete on {ranks}"),
        ("running", _) => format!("{name} is running, or was killed,{after} on {ranks}"),
        ("void", _) => format!("{name} is void on {ranks}: a loss is not the golden one"),
        ("dead", _) => format!("{name} was killed{after} on {ranks}"),
        ("stopped", _) => format!("{name} was stopped{after} on {ranks}"),
        (_, _) => format!("{name} failed{after} on {ranks}"),
    }
}

/// Builds the main figures, with the reason of an early end before them and the facts below.
pub(super) fn result(report: &ReportData) -> String {
    let mut text = String::from("<div class=\"wide\">");
    let is_bad = ["failed", "dead", "void"].contains(&report.state);
    if report.record.reason.is_some() {
        let class = if is_bad { " class=\"bad\"" } else { "" };
        let status = escape(&status(report)).replace('\n', "<br>");
        let _ = write!(text, "<p{class}>{status}</p>");
    }
    text += "<dl class=\"tiles\">";
    for (index, Tile { name, value, detail }) in tiles(report).into_iter().enumerate() {
        let class = if index == 0 && is_bad { " class=\"bad\"" } else { "" };
        let (value, detail) = (escape(&value), escape(&detail));
        let _ = write!(
            text,
            "<div><dt>{name}</dt><dd{class}>{value}<small>{detail}</small></dd></div>"
        );
    }
    text += "</dl><dl class=\"facts\">";
    for Fact { name, value } in rows(report) {
        let _ = write!(text, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    text + "</dl></div>"
}

/// Lists facts, and digests that are equal for runs with the same bits.
fn rows(report: &ReportData) -> Vec<Fact> {
    let record = &report.record;
    let workload = format!("{} ({})", record.workload.name, record.workload.id);
    let mut rows = vec![Fact { name: "workload", value: workload }];
    rows.extend(facts(report));
    let short = |digest: &str| digest.chars().take(12).collect::<String>();
    let fingerprint = record.fingerprint.as_ref().map_or("null".to_owned(), |fingerprint| {
        let weights = fingerprint.weights.as_deref().map_or("null".to_owned(), short);
        format!("losses {}, weights {weights}", short(&fingerprint.losses))
    });
    rows.push(Fact { name: "fingerprint", value: fingerprint });
    rows
}

/// Builds eight tiles, so that no row of them has a gap.
fn tiles(report: &ReportData) -> [Tile; 8] {
    let record = &report.record;
    let null = || "null".to_owned();
    let tile = |name: &str, value: Option<String>, detail: Option<String>| Tile {
        name: name.to_owned(),
        value: value.unwrap_or_else(null),
        detail: detail.unwrap_or_default(),
    };
    let code = record.exit_code.map(|code| format!("exit code {code}"));
    let hosts = format!("on {}", count(report.hosts.len(), "host"));
    let steps = record.steps.as_ref();
    let rates = record.tokens_per_second;
    let per_rank = |rate: f64| format!("{} per rank", thousands(rate));
    let range = steps.map(|steps| {
        let [p5, p95] = [steps.step_ms.p5, steps.step_ms.p95].map(milliseconds);
        format!("ms; p5 {p5}, p95 {p95}")
    });
    let loss = |loss: Option<f64>| loss.map(|loss| format!("{loss:.4}"));
    let first = steps.and_then(|steps| loss(steps.loss_first));
    let attempts = count(record.attempts.len(), "attempt");
    [
        tile("Status", Some(report.state.to_owned()), code),
        tile("Ranks", Some(report.world.to_string()), Some(hosts)),
        tile(
            "Tokens per second, step clock",
            rates.map(|rates| thousands(rates.step.total)),
            rates.map(|rates| per_rank(rates.step.per_rank)),
        ),
        tile(
            "Tokens per second, wall clock",
            rates.map(|rates| thousands(rates.wall.total)),
            rates.map(|_| "with checkpoints and evaluation".to_owned()),
        ),
        tile("Time of a step, median", steps.map(|it| milliseconds(it.step_ms.median)), range),
        tile(
            "Loss of the last step",
            steps.and_then(|steps| loss(steps.loss_last)),
            first.map(|first| format!("first {first}")),
        ),
        utilization(record),
        tile("Goodput", record.goodput.map(|goodput| percent(goodput.share)), Some(attempts)),
    ]
}

/// Utilization of the published peak if there is one, or else of the measured matmul rate.
fn utilization(record: &Record) -> Tile {
    let known = utilizations(record);
    let mut known = known.iter();
    let Some(first) = known.next() else {
        let (value, detail) = ("null".to_owned(), String::new());
        return Tile { name: "MFU".to_owned(), value, detail };
    };
    let mut detail = format!("causal; {} full", percent(first.full));
    for other in known {
        detail += &format!("; {} causal of the {}", percent(other.causal), other.of);
    }
    if let Some(rate) = record.rank_flops_per_second {
        detail += &format!("; {} per rank", scaled(rate.causal, "FLOP/s"));
    }
    let detail = with_power_cap(detail, record);
    Tile { name: format!("MFU of the {}", first.of), value: percent(first.causal), detail }
}
