//! The page of a fixed record, and of records that lack the figures of the page.

use super::*;
use crate::report::facts::Fact;
use record::fixtures::finished;
use record::{Anomaly, OwnTimes, RankRecord, Reason, Record, Status, StepBlock};

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

/// Returns the titles of the figures that are as wide as the page, and of the others.
fn titles(page: &str) -> [Vec<&str>; 2] {
    ["<figure class=\"wide\"><h3>", "<figure><h3>"].map(|begin| {
        page.split(begin).skip(1).map(|rest| rest.split("</h3>").next().unwrap()).collect()
    })
}

#[test]
fn a_full_record_has_every_chart_and_none_stands_alone() {
    let page = one(full());
    let [wide, half] = titles(&page);
    let expected = ["Shares of phases", "Phases over steps", "Own time of ranks", "Communication"];
    assert_eq!(wide, expected);
    let expected = [
        "Loss",
        "Training health",
        "Speed",
        "Step times",
        "Checkpoints",
        "Storage",
        "Goodput",
        "Attempts",
    ];
    assert_eq!(half, expected);
    let drawn = |class: &str| page.matches(&format!("<svg class=\"{class}\" viewBox")).count();
    assert_eq!([drawn("is-wide"), drawn("is-half"), drawn("is-phone")], [3, 11, 11]);
    assert_eq!(page.matches("</svg>").count(), 25);
}

#[test]
fn what_a_record_lacks_is_left_out() {
    let empty = Record {
        steps: None,
        phases: None,
        checkpoints: None,
        goodput: None,
        collectives: None,
        ..finished()
    };
    let page = one(empty);
    assert_eq!(titles(&page), [vec!["Attempts"], vec![]], "attempts are always there");
    assert!(!page.contains("<h2>Steps</h2>") && page.contains("<h2>Result</h2>"));
}

#[test]
fn the_headline_says_in_words_what_became_of_the_run() {
    let headline = |change: fn(&mut ReportData)| {
        let mut report = ReportData::new(full());
        change(&mut report);
        let page = page(&[report]);
        let headline = page.split("<h1>").nth(1).unwrap().split("</h1>").next().unwrap();
        headline.to_owned()
    };
    assert_eq!(headline(|_| {}), "smoke: 40,960 tokens/s (step clock) on 2 ranks");
    assert_eq!(headline(|it| it.state = "dead"), "smoke was killed after 12 steps on 2 ranks");
    assert_eq!(headline(|it| it.state = "failed"), "smoke failed after 12 steps on 2 ranks");
    let early = headline(|it| {
        it.state = "failed";
        it.record.steps = None;
    });
    assert_eq!(early, "smoke failed on 2 ranks");
    let running = "smoke is running, or was killed, after 12 steps on 2 ranks";
    assert_eq!(headline(|it| it.state = "running"), running);
    assert_eq!(headline(|it| it.state = "stopped"), "smoke was stopped after 12 steps on 2 ranks");
    let void = "smoke is void on 2 ranks: a loss is not the golden one";
    assert_eq!(headline(|it| it.state = "void"), void);
    let injected = headline(|it| it.record.attempts[0].injected = vec!["kill@step=3".to_owned()]);
    assert_eq!(injected, "smoke is complete on 2 ranks, with injected faults");
    let unmeasured = headline(|it| it.record.tokens_per_second = None);
    assert_eq!(unmeasured, "smoke is complete on 2 ranks");
}

#[test]
fn the_page_has_what_the_text_has() {
    let mut record = full();
    record.status = Status::Failed;
    record.exit_code = Some(5);
    let text = "rank 1 was lost".to_owned();
    record.reason = Some(Reason { rank: Some(1), step: Some(13), text, ..Default::default() });
    let report = ReportData::new(record).with_folder("runs/monday");
    let facts = crate::report::facts::facts(&report);
    let [text, markdown] = [report.to_string(), report.to_markdown()];
    let page = page(&[report]);
    assert_eq!(facts.len(), 10);
    for Fact { name, value } in facts {
        assert!(page.contains(&format!("<dt>{name}</dt><dd>{value}</dd>")), "{name}: {value}");
        assert!(text.contains(&format!(" {name:14} {value}\n")), "{name}: {value}: {text}");
        assert!(markdown.contains(&format!("| {name} | {value} |")), "{name}: {value}: {markdown}");
    }
    let figures = ["failed, exit code 5, rank 1, step 13", "rank 1 was lost", "40,960", "23,406"];
    for all in figures.into_iter().chain(["17.1%", "61.4%", "5.0714"]) {
        let has = [&text, &markdown, &page].map(|it| it.contains(all));
        assert_eq!(has, [true; 3], "{all}: text, Markdown, page");
    }
}

#[test]
fn markdown_of_any_text_is_one_heading_and_one_row() {
    let mut record = full();
    record.workload.name = "a<b>|\r\n\\|c".to_owned();
    let report = ReportData::new(record).with_folder("runs|x");
    let markdown = report.to_markdown();
    assert!(markdown.starts_with("### a&lt;b>|  \\|c (`0123456789ab`): complete"), "{markdown}");
    assert!(markdown.contains("| folder | runs\\|x |"), "{markdown}");
    let table = crate::report::overview(&[report.clone(), report]);
    let row = table.lines().nth(2).unwrap();
    assert!(row.contains("| runs\\|x | a&lt;b>\\|  \\\\\\|c (0123456789ab) |"), "{row}");
    assert_eq!(table.lines().count(), 4, "{table}");
}

#[test]
fn a_slow_rank_is_warm_and_a_pointer_shows_by_how_much() {
    let page = one(full());
    let map = page.split("<h3>Own time of ranks</h3>").nth(1).unwrap();
    let map = map.split("</figure>").next().unwrap();
    assert!(map.contains("var(--warm)") && !map.contains("fill=\"var(--cool)"), "{map}");
    let text = "rank 1 from step 9: 111.1 ms\n+10.0 % to the median rank";
    assert_eq!(map.matches(&format!("<title>{text}</title>")).count(), 2, "wide and half: {map}");
}

/// Returns the heights of all rectangles of a drawing.
fn heights(svg: &str) -> Vec<u32> {
    let rectangles = svg.split("<rect ").skip(1);
    let height =
        |rectangle: &str| rectangle.split("height=\"").nth(1)?.split('"').next()?.parse().ok();
    rectangles.filter_map(height).collect()
}

/// Returns the drawing of a figure in a shape, without hover texts.
fn drawing<'page>(page: &'page str, title: &str, class: &str) -> &'page str {
    let figure = page.split(&format!("<h3>{title}</h3>")).nth(1).unwrap();
    let figure = figure.split("</figure>").next().unwrap();
    let svg = figure.split(&format!("<svg class=\"{class}\"")).nth(1).unwrap();
    svg.split("</svg>").next().unwrap().split("<g class=\"hover\">").next().unwrap()
}

#[test]
fn a_long_step_does_not_flatten_the_others() {
    for bars in [8, 40, 200] {
        let mut record = full();
        let steps = record.steps.as_mut().unwrap();
        let block = steps.series.last().unwrap().clone();
        let block = StepBlock { steps: 1, ..block };
        let at = |step| StepBlock { first_step: step, ..block.clone() };
        steps.series = (1..=bars).map(at).collect();
        steps.series[5].phases_ns.backward *= 1000;
        let page = one(record);
        assert!(page.contains(&format!("which 1 of {bars} bars exceed; the longest")), "{page}");
        let heights = heights(drawing(&page, "Phases over steps", "is-wide"));
        let highest = *heights.iter().max().unwrap();
        let tall = heights.iter().filter(|height| **height > highest / 3).count();
        assert!(tall as u64 > bars / 2, "{tall} of {bars}");
    }
}

#[test]
fn the_only_slow_rank_of_hundreds_is_seen() {
    let mut record = full();
    let rank = record.ranks[0].clone();
    record.ranks = (0..512).map(|number| RankRecord { rank: number, ..rank.clone() }).collect();
    record.ranks[170].times.as_mut().unwrap().own_ms = vec![130.0, 131.0];
    record.ranks[171].times.as_mut().unwrap().own_ms.truncate(1);
    let page = one(record);
    for class in ["is-wide", "is-half", "is-phone"] {
        let drawing = drawing(&page, "Own time of ranks", class);
        let warm: Vec<_> = drawing.split("<rect ").filter(|it| it.contains("--warm")).collect();
        assert_eq!(warm.len(), 2, "one for each block");
        let heights = warm.iter().flat_map(|it| heights(&format!("<rect {it}")));
        assert!(heights.min() >= Some(1), "{class}: {warm:?}");
    }
    assert!(page.contains("<title>the slowest is rank 170 from step 9: 131.0 ms"), "{page}");
    assert!(page.contains("32 of 512 ranks"), "{page}");
}

#[test]
fn a_pointer_shows_the_nearest_point_up_to_both_ends() {
    let mut record = full();
    record.checkpoints.as_mut().unwrap().saved.truncate(1);
    let page = one(record);
    let figure = page.split("<h3>Checkpoints</h3>").nth(1).unwrap();
    let hovers = figure.split("<g class=\"hover\">").nth(1).unwrap().split("</g>").next().unwrap();
    let width = hovers.split("width=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(width.parse::<u32>().unwrap() > 300, "{hovers}");
}

#[test]
fn many_warnings_are_left_to_the_text() {
    let mut record = full();
    let anomaly = |step| Anomaly { step: Some(step), rank: None, text: "slow".to_owned() };
    record.anomalies = (1..=100).map(anomaly).collect();
    let report = ReportData::new(record);
    let more = report.warnings.len() - 24;
    let page = page(&[report]);
    assert!(
        page.contains(&format!("<li>and {more} more, which the text report has</li>")),
        "{page}"
    );
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
    record.reason = Some(record::Reason { text: evil, ..Default::default() });
    let page = one(record);
    assert!(!page.contains("<script"), "{page}");
    assert!(page.matches("&lt;script&gt;alert(&quot;&amp;&#39;&quot;)").count() >= 4);
}

#[test]
fn several_runs_have_a_table_and_a_trend_of_each_workload() {
    let night = |night: u64, id: &str, ranks: usize| {
        let mut record = full();
        record.attempts[0].started_unix_ms = night * 86_400_000;
        record.workload.id = id.to_owned();
        record.ranks.truncate(ranks);
        ReportData::new(record).with_folder(&format!("runs/{night}"))
    };
    let other = "ffffffffffff";
    let smoke = "0123456789ab";
    let page =
        page(&[night(3, smoke, 2), night(1, smoke, 2), night(2, smoke, 1), night(4, other, 2)]);
    let [wide, half] = titles(&page);
    assert_eq!(half[..2], ["Speed of smoke (0123456789ab)", "Speed of smoke (ffffffffffff)"]);
    assert_eq!(wide[0], "Shares of phases");
    let trend =
        page.split("(0123456789ab)</h3>").nth(1).unwrap().split("</figure>").next().unwrap();
    assert!(trend.contains("</i>1 rank</span>") && trend.contains("</i>2 ranks</span>"), "{trend}");
    assert!(trend.contains("<title>runs/2\n1970-01-03 00:00 UTC, 1 rank, complete\n40,960"));
    let rows: Vec<_> = page.split("<tr><td>").skip(1).take(4).map(|row| &row[..6]).collect();
    assert_eq!(rows, ["runs/1", "runs/2", "runs/3", "runs/4"], "in the order of starts");
    let title = "<h1>4 runs, the newest: smoke: 40,960 tokens/s (step clock) on 2 ranks</h1>";
    assert!(page.contains(title), "{page}");
}
