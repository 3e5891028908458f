//! The report as one page of HTML that needs nothing else: charts are SVG, and there is no script.

mod canvas;
mod charts;
mod hardware_charts;
mod rank_chart;
mod rank_table;
mod storage_charts;
mod tables;
mod time_charts;
mod trend;

use super::ReportData;

/// The page of one run, or of several: then a table and a trend before the newest of them.
pub(super) fn page(reports: &[ReportData]) -> String {
    let newest = reports.iter().max_by_key(|report| started(report));
    let Some(newest) = newest else { return String::new() };
    let workload = &newest.record.workload;
    let title = format!("{} ({})", workload.name, workload.id);
    let mut body = String::new();
    if reports.len() > 1 {
        body += &section(&format!("{} runs", reports.len()), &trend::runs(reports));
    }
    body += &section("Result", &tables::result(newest));
    body += &section("Steps", &charts::steps(&newest.record));
    let ranks = rank_chart::heat_map(&newest.record) + &rank_table::table(&newest.record);
    body += &section("Ranks", &ranks);
    body += &section("Communication and storage", &storage_charts::all(&newest.record));
    body += &section("Hardware", &hardware_charts::all(&newest.record));
    body += &section("Time of the run", &time_charts::all(&newest.record));
    body += &section("Way to the first step", &tables::starts(&newest.record));
    body += &section("Warnings", &tables::warnings(newest));
    body += &section("Environment", &tables::environment(&newest.record));
    let title = escape(&title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n",
        include_str!("page.css")
    )
}

/// Nothing where there is no content.
fn section(heading: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2>\n{content}</section>\n", escape(heading))
}

/// When a run started, for their order.
fn started(report: &ReportData) -> u64 {
    report.record.attempts.first().map_or(0, |attempt| attempt.started_unix_ms)
}

/// A text as HTML, in elements and in quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
