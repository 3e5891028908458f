//! The parts of the page that are text: the result, warnings and the environment.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::escape;
use crate::number_format;
use crate::record::{Record, Status};
use crate::report::starts::rows;
use crate::report::{ReportData, Start};

/// One of the main figures.
struct Figure {
    name: &'static str,
    value: String,
    /// What belongs to it.
    detail: String,
}

/// The status and the main figures.
pub(super) fn result(report: &ReportData) -> String {
    let record = &report.record;
    let mut text = String::from("<div class=\"wide\">");
    let is_good = record.status == Status::Complete;
    if let Some(reason) = record.reason.as_ref().filter(|_| !is_good) {
        let _ = write!(text, "<p class=\"bad\">{}</p>", escape(&reason.text));
    }
    text += "<dl class=\"figures\">";
    for Figure { name, value, detail } in figures(report) {
        let class = if name == "status" && !is_good { " class=\"bad\"" } else { "" };
        let (value, detail) = (escape(&value), escape(&detail));
        let _ = write!(
            text,
            "<div><dt>{name}</dt><dd{class}>{value}<small>{detail}</small></dd></div>"
        );
    }
    text + "</dl></div>"
}

fn figures(report: &ReportData) -> Vec<Figure> {
    let record = &report.record;
    let null = || "null".to_owned();
    let ranks = number_format::count(report.world, "rank");
    let hosts = number_format::count(report.hosts.len(), "host");
    let code = record.exit_code.map_or(String::new(), |code| format!("exit code {code}"));
    let mut figures = vec![
        Figure { name: "status", value: record.status.name().to_owned(), detail: code },
        Figure { name: "ranks", value: ranks, detail: format!("on {hosts}") },
    ];
    let mut add = |name, value: Option<String>, detail: String| {
        figures.push(Figure { name, value: value.unwrap_or_else(null), detail });
    };
    let rates = record.tokens_per_second;
    let rate = rates.map(|rate| number_format::thousands(rate.step.total));
    let per_rank = rates.map(|rate| number_format::thousands(rate.step.per_rank));
    add("tokens/s", rate, per_rank.map_or(String::new(), |rate| format!("{rate} per rank")));
    if let Some(steps) = &record.steps {
        let [p5, p95] = [steps.step_ms.p5, steps.step_ms.p95].map(number_format::milliseconds);
        let median = number_format::milliseconds(steps.step_ms.median);
        add("step ms", Some(median), format!("p5 {p5}, p95 {p95}"));
        let loss = steps.loss_last.map(|loss| format!("{loss:.4}"));
        let first = steps.loss_first.map_or(String::new(), |loss| format!("first {loss:.4}"));
        add("loss", loss, first);
    }
    let mfu = |share: f64| number_format::percent(share);
    let measured = record.mfu_measured.map(|measured| mfu(measured.causal));
    let full = record.mfu_measured.map(|measured| format!("causal; {} full", mfu(measured.full)));
    add("mfu_measured", measured, full.unwrap_or_default());
    if let Some((causal, full)) = record.mfu_causal.zip(record.mfu_full) {
        add("mfu", Some(mfu(causal)), format!("causal; {} full", mfu(full)));
    }
    let goodput = record.goodput.map(|goodput| number_format::percent(goodput.share));
    let attempts = number_format::count(record.attempts.len(), "attempt");
    add("goodput", goodput, attempts);
    if let Some(fingerprint) = &record.fingerprint {
        let short = |digest: &str| digest.chars().take(8).collect::<String>();
        let weights = fingerprint.weights.as_deref().map_or_else(null, short);
        add("losses", Some(short(&fingerprint.losses)), format!("weights {weights}"));
    }
    figures
}

/// What limits the meaning of the figures; nothing without any.
pub(super) fn warnings(report: &ReportData) -> String {
    if report.warnings.is_empty() {
        return String::new();
    }
    let items = report.warnings.iter().map(|text| format!("<li>{}</li>", escape(text)));
    format!("<ul class=\"wide\">{}</ul>", items.collect::<String>())
}

/// How long each attempt took to its first step, and where.
pub(super) fn starts(record: &Record) -> String {
    let starts: Vec<_> = record.attempts.iter().map(Start::of).collect();
    let mut text = "<div class=\"wide scroll\"><table><tbody>".to_owned();
    for row in rows(&starts) {
        text += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let tag = if column == 0 { "th" } else { "td" };
            let _ = write!(text, "<{tag}>{}</{tag}>", escape(cell));
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>"
}

/// The machine and the software, and the settings of the run.
pub(super) fn environment(record: &Record) -> String {
    let mut rows = Vec::new();
    flatten("", &json!(record.environment), &mut rows);
    if let Some(group) = record.nodes.first() {
        flatten("node", &json!(group.identity), &mut rows);
    }
    flatten("", &record.run, &mut rows);
    let mut text = "<div class=\"wide scroll\"><table><tbody>".to_owned();
    for (name, value) in rows {
        let _ = write!(text, "<tr><th>{}</th><td>{}</td></tr>", escape(&name), escape(&value));
    }
    text + "</tbody></table></div>"
}

/// The leaves of a value that are known, by their paths.
fn flatten(path: &str, value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        Value::String(text) => into.push((path.to_owned(), text.clone())),
        value => into.push((path.to_owned(), value.to_string())),
    }
}
