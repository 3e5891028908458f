//! Several runs: a table, and the change of the speed of each workload.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{Axis, Chart, Ink};
use super::charts::{from_zero, whole};
use super::figure::{Figure, arranged};
use super::tables;
use crate::report::overview::{HEADINGS, Row, is_number};
use crate::report::{ReportData, facts};
use record::Clocks;
use record::text::number_format::{count, thousands};

/// Builds charts and table of runs, which are in the order of their starts.
pub(super) fn runs(reports: &[&ReportData]) -> String {
    let mut workloads: BTreeMap<&str, Vec<&ReportData>> = BTreeMap::new();
    for report in reports {
        workloads.entry(&report.record.workload.id).or_default().push(report);
    }
    let mut workloads: Vec<_> = workloads.into_values().collect();
    workloads.sort_by_key(|runs| runs[0].record.workload.name.clone());
    let charts = workloads.iter().filter_map(|runs| speeds(runs));
    arranged(charts) + &table(reports)
}

/// Draws the runs of one workload, a line for each number of ranks: more ranks are faster, and
/// another workload is another amount of work.
fn speeds<'a>(runs: &[&'a ReportData]) -> Option<Figure<'a>> {
    let measured = (1_u32..).zip(runs).filter_map(|(number, report)| {
        let rate = report.record.result_rate()?;
        Some(Measured { number: f64::from(number), rate, report })
    });
    let measured: Vec<_> = measured.collect();
    let first = measured.first()?.report;
    let worlds: BTreeSet<usize> = measured.iter().map(|run| run.report.world).collect();
    let worlds: Vec<_> = (0..).map(Ink::Series).zip(worlds).collect();
    let names: Vec<_> = worlds.iter().map(|(ink, world)| (count(*world, "rank"), *ink)).collect();
    let workload = &first.record.workload;
    let chart = Chart {
        title: format!("Speed of {} ({})", workload.name, workload.id).into(),
        caption:
            "Complete runs without injected faults, all ranks together, in the order of starts."
                .into(),
        x: Axis { label: "run", range: 0.5..runs.len() as f64 + 0.5, format: whole },
        y: Axis {
            label: Clocks::STEP_RATE,
            range: from_zero(measured.iter().map(|run| run.rate)),
            format: thousands,
        },
    };
    let texts: Vec<_> = measured.iter().map(|run| (run.number, run.text())).collect();
    let figure = Figure::new(chart, move |canvas| {
        for (ink, world) in &worlds {
            let of_world = measured.iter().filter(|run| run.report.world == *world);
            let points: Vec<_> = of_world.map(|run| (run.number, run.rate)).collect();
            canvas.line(&points, *ink);
            points.iter().for_each(|point| canvas.dot(*point, *ink));
        }
        canvas.hover_nearest(&texts);
    });
    Some(figure.with_legend(names))
}

/// A run with a rate.
struct Measured<'a> {
    /// Position among the runs of its workload.
    number: f64,
    rate: f64,
    report: &'a ReportData,
}

impl Measured<'_> {
    fn text(&self) -> String {
        let ReportData { record, world, state, folder, .. } = self.report;
        let folder = folder.as_deref().unwrap_or("null");
        let started = facts::started(record).unwrap_or_else(|| "null".to_owned());
        let (rate, ranks) = (thousands(self.rate), count(*world, "rank"));
        format!("{folder}\n{started} UTC, {ranks}, {state}\n{rate} {}", Clocks::STEP_RATE)
    }
}

fn table(reports: &[&ReportData]) -> String {
    let rows = reports.iter().map(|report| Row::of(report).cells());
    format!("<div class=\"wide scroll\">{}</div>", tables::columns(&HEADINGS, rows, is_number))
}
