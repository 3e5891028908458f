//! Text parts of the page: warnings, the start of attempts, and the environment.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::escape;
use crate::report::starts::rows;
use crate::report::{ReportData, Start, traffic};
use record::Record;

/// Maximum number of warnings on the page, so that it can be printed; the text has all.
const WARNINGS_MAX: usize = 24;

/// Formats warnings, which limit the meaning of the figures; nothing without any.
pub(super) fn warnings(report: &ReportData) -> String {
    if report.warnings.is_empty() {
        return String::new();
    }
    let shown = report.warnings.iter().take(WARNINGS_MAX);
    let mut items: String = shown.map(|text| format!("<li>{}</li>", escape(text))).collect();
    if let more @ 1.. = report.warnings.len().saturating_sub(WARNINGS_MAX) {
        let _ = write!(items, "<li>and {more} more, which the text report has</li>");
    }
    format!("<ul class=\"wide\">{items}</ul>")
}

/// Builds a table with a heading for each column; columns of numbers are aligned to the right.
pub(super) fn columns<Row: IntoIterator<Item = String>>(
    headings: &[&str],
    rows: impl IntoIterator<Item = Row>,
    is_number: impl Fn(usize) -> bool,
) -> String {
    let class = |column| if is_number(column) { " class=\"number\"" } else { "" };
    let mut text = "<table><thead><tr>".to_owned();
    for (column, heading) in headings.iter().enumerate() {
        let _ = write!(text, "<th{}>{}</th>", class(column), escape(heading));
    }
    text += "</tr></thead><tbody>";
    for row in rows {
        text += "<tr>";
        for (column, cell) in row.into_iter().enumerate() {
            let _ = write!(text, "<td{}>{}</td>", class(column), escape(&cell));
        }
        text += "</tr>";
    }
    text + "</tbody></table>"
}

/// Builds the table of traffic over several dimensions; nothing where there is one.
pub(super) fn traffic(record: &Record) -> String {
    let rows = traffic::rows(record);
    if rows.is_empty() {
        return String::new();
    }
    let table = columns(&traffic::HEADINGS, rows, traffic::is_number);
    format!("<div class=\"wide scroll\">{table}</div>")
}

/// Builds the table of the time that each attempt took to its first step, by parts.
pub(super) fn starts(record: &Record) -> String {
    let starts: Vec<_> = record.attempts.iter().map(Start::of).collect();
    let mut text = "<div class=\"wide scroll\"><table><tbody>".to_owned();
    for row in rows(&starts) {
        text += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match column {
                0 => write!(text, "<th>{cell}</th>"),
                _ => write!(text, "<td class=\"number\">{cell}</td>"),
            };
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>"
}

/// Lists the machine, the software, and the settings of the run.
pub(super) fn environment(record: &Record) -> String {
    let mut rows = Vec::new();
    flatten("", &json!(record.environment), &mut rows);
    if let Some(group) = record.nodes.first() {
        flatten("node", &json!(group.identity), &mut rows);
    }
    flatten("", &record.run, &mut rows);
    let mut text = "<dl class=\"wide facts dense\">".to_owned();
    for (name, value) in rows {
        let (name, value) = (escape(&name), escape(&value));
        let _ = write!(text, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    text + "</dl>"
}

/// Collects the known leaves of a value, by their paths.
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
