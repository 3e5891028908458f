//! Several runs: a table, and how their speed changed.

use std::fmt::Write as _;

use super::canvas::{Axis, Chart, Ink, figure};
use super::charts::{from_zero, whole};
use super::{escape, started};
use crate::number_format;
use crate::report::ReportData;
use crate::report::overview::{HEADINGS, Row};

/// Of runs in the order of their starts.
pub(super) fn runs(reports: &[ReportData]) -> String {
    let mut reports: Vec<_> = reports.iter().collect();
    reports.sort_by_key(|report| started(report));
    format!("{}{}", speeds(&reports).unwrap_or_default(), table(&reports))
}

fn speeds(reports: &[&ReportData]) -> Option<String> {
    let rate = |report: &&ReportData| report.record.tokens_per_second.map(|rate| rate.step.total);
    let points: Vec<_> = (1..)
        .zip(reports)
        .map(|(number, report)| (f64::from(number), rate(report).unwrap_or(f64::NAN)))
        .collect();
    if points.iter().all(|point| point.1.is_nan()) {
        return None;
    }
    let chart = Chart {
        title: "Speed of runs",
        caption: "All ranks together, in the order of starts.",
        x: Axis { label: "run", range: 0.5..points.len() as f64 + 0.5, format: whole },
        y: Axis {
            label: "tokens/s",
            range: from_zero(points.iter().map(|point| point.1)),
            format: number_format::thousands,
        },
    };
    let drawn = figure(&chart, &[], |canvas| {
        canvas.line(&points, Ink::Series(0));
        let measured = points.iter().filter(|point| point.1.is_finite());
        measured.for_each(|point| canvas.dot(*point, Ink::Series(0)));
    });
    Some(format!("<div class=\"wide\">{drawn}</div>"))
}

fn table(reports: &[&ReportData]) -> String {
    let mut text = "<div class=\"wide scroll\"><table><thead><tr>".to_owned();
    for heading in HEADINGS {
        let _ = write!(text, "<th>{}</th>", escape(heading));
    }
    text += "</tr></thead><tbody>";
    for report in reports {
        text += "<tr>";
        for cell in Row::of(&report.record).cells() {
            let _ = write!(text, "<td>{}</td>", escape(&cell));
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>"
}
