//! The page of a fixed record, and of records that lack what it shows.

use super::*;
use crate::record::tests::finished;
use crate::record::{Anomaly, OwnTimes, Record, Status};

fn full() -> Record {
    let mut record = finished();
    for (rank, slow) in record.ranks.iter_mut().zip([1.0, 1.1]) {
        let own_ms = vec![100.0 * slow, 101.0 * slow];
        rank.times = Some(OwnTimes { first_steps: vec![7, 9], own_ms });
    }
    record
}

fn one(record: Record) -> String {
    page(&[ReportData::new(record)])
}

#[test]
fn a_full_record_has_every_chart() {
    let page = one(full());
    for title in [
        "Loss",
        "Training health",
        "Speed",
        "Step times",
        "Phases",
        "Own time of ranks",
        "Communication",
        "Checkpoints",
        "Storage",
        "Goodput",
        "Attempts",
    ] {
        assert!(page.contains(&format!("<figure><h3>{title}</h3>")), "{title}");
    }
    assert_eq!(page.matches("<svg viewBox").count(), 11);
    assert_eq!(page.matches("</svg>").count(), 11);
}

#[test]
fn what_a_record_lacks_is_left_out() {
    let empty =
        Record { steps: None, checkpoints: None, goodput: None, collectives: None, ..finished() };
    let page = one(empty);
    assert_eq!(page.matches("<figure>").count(), 1, "attempts are always there");
    assert!(!page.contains("<h2>Steps</h2>") && page.contains("<h2>Result</h2>"));
}

#[test]
fn the_page_needs_nothing_else_and_takes_its_colours_from_the_style_sheet() {
    let page = one(full());
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("@import"));
    let links: Vec<_> = page.matches("http").collect();
    assert_eq!(links.len(), 0, "svg in HTML needs no namespace");
    let charts: String =
        page.split("<svg").skip(1).map(|it| it.split("</svg>").next().unwrap()).collect();
    for fixed in ["=\"#", "rgb("] {
        assert!(!charts.contains(fixed), "a colour that a dark page cannot change: {fixed}");
    }
}

#[test]
fn texts_of_a_record_cannot_become_markup() {
    let mut record = full();
    record.status = Status::Failed;
    let evil = "<script>alert(\"&'\")</script>".to_owned();
    record.workload.name.clone_from(&evil);
    record.environment.machine.cpu_model = Some(evil.clone());
    record.anomalies.push(Anomaly { step: None, rank: None, text: evil.clone() });
    record.reason = Some(crate::record::Reason { text: evil, ..Default::default() });
    let page = one(record);
    assert!(!page.contains("<script"), "{page}");
    assert!(page.matches("&lt;script&gt;alert(&quot;&amp;&#39;&quot;)").count() >= 4);
}

#[test]
fn several_runs_have_a_table_and_a_trend() {
    let reports: Vec<_> = (1..=3_u64)
        .map(|night| {
            let mut record = full();
            record.attempts[0].started_unix_ms = night * 86_400_000;
            ReportData::new(record)
        })
        .collect();
    let page = page(&reports);
    assert!(page.contains("<h2>3 runs</h2>") && page.contains("<h3>Speed of runs</h3>"));
    assert!(
        page.contains("<td>1970-01-02 00:00</td>") && page.contains("<td>1970-01-04 00:00</td>")
    );
    assert_eq!(page.matches("<svg viewBox").count(), 12);
}
