//! The report as one self-contained page of HTML: charts are SVG, and there is no script.

mod canvas;
mod charts;
mod figure;
mod hardware_charts;
mod phase_chart;
mod rank_chart;
mod rank_table;
mod result;
mod shape;
mod storage_charts;
mod tables;
mod time_charts;
mod trend;

use super::ReportData;

/// Builds the page of one run, or of several: a table and trends, then the newest of them.
pub(super) fn page(reports: &[ReportData]) -> String {
    let mut in_order: Vec<&ReportData> = reports.iter().collect();
    in_order.sort_by_key(|report| report.record.started_unix_ms());
    let Some(newest) = in_order.last() else { return String::new() };
    let headline = result::headline(newest);
    let (title, body) = if in_order.len() > 1 {
        let title = format!("{} runs, the newest: {headline}", in_order.len());
        let runs = section("Runs", &trend::runs(&in_order));
        (title, runs + &section(&format!("The newest run: {headline}"), &result::result(newest)))
    } else {
        (headline, section("Result", &result::result(newest)))
    };
    let title = escape(&title);
    let body = body + &details(newest);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n",
        include_str!("page.css")
    )
}

/// Builds all sections of one run after its result.
fn details(report: &ReportData) -> String {
    let record = &report.record;
    [
        section("Warnings", &tables::warnings(report)),
        section("Phases", &phase_chart::all(record)),
        section("Steps", &charts::steps(record)),
        section("Ranks", &(rank_chart::heat_map(record) + &rank_table::table(record))),
        section(
            "Communication and storage",
            &(storage_charts::all(record) + &tables::traffic(record)),
        ),
        section("Hardware", &hardware_charts::all(record)),
        section("Time of the run", &time_charts::all(record)),
        section("Way to the first step", &tables::starts(record)),
        section("Environment and settings", &tables::environment(record)),
    ]
    .concat()
}

/// Builds a section; nothing if there is no content.
fn section(heading: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2>\n{content}</section>\n", escape(heading))
}

/// Escapes a text for elements and quoted attributes of HTML.
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
