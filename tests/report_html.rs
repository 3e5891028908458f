//! The page that `report --html` writes, in a real browser.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Folder, run, text};

/// What a browser makes of a page at a width.
struct Rendered {
    /// Of each chart, by its title: what is drawn.
    charts: Vec<Value>,
    /// Whether anything is wider than the page.
    is_too_wide: bool,
    /// What it logged.
    log: String,
}

/// Opens the page in a frame, and measures what is in it.
fn render(page: &Path, width: u32) -> Rendered {
    let wrapper = page.with_extension("wrapper.html");
    let name = page.file_name().unwrap().to_str().unwrap();
    let script = "
        const inside = frame.contentDocument;
        const charts = [...inside.querySelectorAll('figure')].map(figure => {
            const svg = figure.querySelector('svg');
            const shapes = [...svg.querySelectorAll('polyline, rect, circle')];
            const visible = shapes.filter(shape => {
                const box = shape.getBBox();
                const style = frame.contentWindow.getComputedStyle(shape);
                const ink = style.fill === 'none' ? style.stroke : style.fill;
                return box.width + box.height > 1 && ink !== 'none';
            });
            const inks = new Set(visible.map(shape => {
                const style = frame.contentWindow.getComputedStyle(shape);
                return style.fill === 'none' ? style.stroke : style.fill;
            }));
            const box = svg.getBoundingClientRect();
            return {title: figure.querySelector('h3').textContent, shapes: visible.length,
                    inks: [...inks], width: box.width, height: box.height};
        });
        const root = inside.documentElement;
        const result = {charts, wide: root.scrollWidth > root.clientWidth};
        document.body.textContent = 'BEGIN' + JSON.stringify(result) + 'END';";
    let html = format!(
        "<body><iframe id=frame src='{name}' style='width:{width}px;height:3000px'></iframe>\
         <script>frame.onload = () => {{{script}}};</script></body>"
    );
    std::fs::write(&wrapper, html).unwrap();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"])
        .args(["--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", wrapper.display()))
        .output()
        .expect("chromium is installed: scripts/setup.sh test");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = dom.split("BEGIN").nth(1).and_then(|rest| rest.split("END").next());
    let json = json.unwrap_or_else(|| panic!("{dom}\n{log}"));
    let result: Value = serde_json::from_str(&json.replace("&amp;", "&")).unwrap();
    Rendered {
        charts: result["charts"].as_array().unwrap().clone(),
        is_too_wide: result["wide"].as_bool().unwrap(),
        log,
    }
}

#[test]
fn every_chart_is_drawn_in_a_browser_without_an_error() {
    let folder = Folder::new();
    let local = format!("checkpoint.nvme.path=\"{}\"", text(&folder.sibling("nvme")));
    let flags = ["--steps", "40", "--eval-every", "10", "--checkpoint-every", "10steps"];
    let often = ["--set", "telemetry.hardware_interval=100ms"];
    folder.train_on(2, &[&flags[..], &["--set", &local], &often].concat()).expect(0);
    let page = folder.sibling("report.html");
    run(&["report", &folder.text(), "--html", &text(&page)]).expect(0);
    for width in [390, 1200] {
        let Rendered { charts, is_too_wide, log } = render(&page, width);
        let titles = charts.iter().map(|chart| chart["title"].as_str().unwrap());
        // Not every machine tells these.
        let may_lack = ["Stolen time", "Waiting for processors", "Network", "Disks"];
        let titles: Vec<_> = titles.filter(|title| !may_lack.contains(title)).collect();
        let expected = [
            "Loss",
            "Training health",
            "Speed",
            "Step times",
            "Phases",
            "Own time of ranks",
            "Communication",
            "Checkpoints",
            "Storage",
            "Processors",
            "Goodput",
            "Attempts",
        ];
        assert_eq!(titles, expected);
        for chart in &charts {
            let (shapes, size) = (chart["shapes"].as_u64().unwrap(), chart["width"].as_f64());
            assert!(shapes >= 3 && size.unwrap() > 200.0, "{width}: {chart}");
            assert!(chart["inks"].as_array().unwrap().len() >= 2, "a grid and more: {chart}");
        }
        assert!(!is_too_wide, "the page scrolls sideways at {width}");
        let errors: Vec<_> = log.lines().filter(|line| line.contains(":CONSOLE")).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn several_runs_are_a_table_a_page_and_a_list() {
    let folder = Folder::new();
    let out = folder.text();
    let repeats = ["bench", "--repeats", "2", "--measure-steps", "10", "--out", &out];
    run(&repeats).expect(0);
    let page = folder.sibling("runs.html");
    let shown = run(&["report", &out, "--html", &text(&page)]).expect(0);
    assert_eq!(shown.stdout.matches("| complete |").count(), 2, "{}", shown.stdout);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("<h2>2 runs</h2>") && html.contains("<h3>Speed of runs</h3>"));
    let list: Value =
        serde_json::from_str(&run(&["report", "--json", &out]).expect(0).stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let one = text(&folder.path().join("repeat-01/record.json"));
    run(&["report", "--markdown", &one]).expect(0).expect_stdout(&["### smoke (`", "| tokens/s |"]);
    let nowhere = ["report", &one, "--html", "/nowhere/report.html"];
    run(&nowhere).expect(2).expect_stderr(&["/nowhere/report.html: cannot write"]);
}
