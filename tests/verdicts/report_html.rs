//! Page of `report --html`, in a real browser.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Folder, run, text};

/// Rendering of a page by a browser at a width.
struct Rendered {
    /// Content of the visible shape of each chart, by its title.
    charts: Vec<Value>,
    /// What is wider than the page.
    too_wide: Vec<Value>,
    /// Log of the browser.
    log: String,
}

/// Runs the browser without a window; what it prints.
fn browse(flags: &[&str], page: &Path) -> Output {
    let profile = tempfile::tempdir().unwrap();
    Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"])
        .args(flags)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium is installed: scripts/setup.sh test")
}

/// Opens the page in a frame, and measures what is in it.
fn render(page: &Path, width: u32) -> Rendered {
    let wrapper = page.with_extension("wrapper.html");
    let name = page.file_name().unwrap().to_str().unwrap();
    let script = "
        const inside = frame.contentDocument;
        const styleOf = shape => frame.contentWindow.getComputedStyle(shape);
        const figures = [...inside.querySelectorAll('figure:has(svg)')];
        const charts = figures.map(figure => {
            const all = [...figure.querySelectorAll('svg')];
            const shown = all.filter(it => styleOf(it).display !== 'none');
            const svg = shown[0];
            const shapes = [...svg.querySelectorAll('polyline, rect, circle')];
            const ink = shape => {
                const style = styleOf(shape);
                return style.fill === 'none' ? style.stroke : style.fill;
            };
            const visible = shapes.filter(shape => {
                const box = shape.getBBox();
                const isHidden = ink(shape) === 'none' || shape.closest('.hover');
                return box.width + box.height > 1 && !isHidden;
            });
            const box = svg.getBoundingClientRect();
            const scale = box.width / svg.viewBox.baseVal.width;
            const texts = [...svg.querySelectorAll('text')];
            const font = Math.min(...texts.map(text => scale * parseFloat(styleOf(text).fontSize)));
            return {title: figure.querySelector('h3').textContent, drawings: shown.length,
                    shapes: visible.length, inks: [...new Set(visible.map(ink))], font,
                    hovers: svg.querySelectorAll('.hover title').length, width: box.width,
                    place: Math.round(figure.getBoundingClientRect().right)};
        });
        const root = inside.documentElement;
        const isWide = it => it.getBoundingClientRect().right > root.clientWidth;
        const scrolls = root.scrollWidth > root.clientWidth;
        const all = scrolls ? [...inside.querySelectorAll('body, body :not(.scroll *)')] : [];
        const wide = all.filter(isWide).map(it => it.outerHTML.slice(0, 200));
        const result = {charts, wide: scrolls ? ['the page scrolls sideways', ...wide] : []};
        document.body.textContent = 'BEGIN' + JSON.stringify(result) + 'END';";
    let html = format!(
        "<body><iframe id=frame src='{name}' style='width:{width}px;height:3000px'></iframe>\
         <script>frame.onload = () => {{{script}}};</script></body>"
    );
    std::fs::write(&wrapper, html).unwrap();
    let flags = ["--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom"];
    let output = browse(&flags, &wrapper);
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = dom.split("BEGIN").nth(1).and_then(|rest| rest.split("END").next());
    let json = json.unwrap_or_else(|| panic!("{dom}\n{log}"));
    let result: Value = serde_json::from_str(&json.replace("&amp;", "&")).unwrap();
    Rendered {
        charts: result["charts"].as_array().unwrap().clone(),
        too_wide: result["wide"].as_array().unwrap().clone(),
        log,
    }
}

/// Number of pages when it is printed.
fn printed_pages(page: &Path) -> usize {
    let pdf = page.with_extension("pdf");
    let file = format!("--print-to-pdf={}", pdf.display());
    browse(&[&file, "--no-pdf-header-footer"], page);
    let bytes = std::fs::read(&pdf).unwrap();
    String::from_utf8_lossy(&bytes).matches("/Type /Page\n").count()
}

/// A run with everything that is drawn.
const FLAGS: [&str; 8] = [
    "--steps",
    "24",
    "--eval-every",
    "6",
    "--checkpoint-every",
    "6steps",
    "--set",
    "telemetry.hardware_interval=100ms",
];

#[test]
fn every_chart_is_drawn_in_a_browser_without_an_error() {
    let folder = Folder::new();
    let local = format!("checkpoint.nvme.path=\"{}\"", text(&folder.sibling("nvme")));
    folder.train_on(2, &[&FLAGS[..], &["--set", &local]].concat()).expect(0);
    let page = folder.sibling("report.html");
    run(&["report", &folder.text(), "--html", &text(&page)]).expect(0);
    assert!((1..=5).contains(&printed_pages(&page)));
    for width in [360, 800, 1200] {
        let Rendered { charts, too_wide, log } = render(&page, width);
        let titles = charts.iter().map(|chart| chart["title"].as_str().unwrap());
        // Some machines do not report these.
        let may_lack = ["Stolen time", "Waiting for processors", "Network", "Disks"];
        let titles: Vec<_> = titles.filter(|title| !may_lack.contains(title)).collect();
        let expected = [
            "Phases over steps",
            "Loss",
            "Training health",
            "Speed",
            "Step times",
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
            assert_eq!(chart["drawings"], 1, "one shape is shown: {width}: {chart}");
            assert!(chart["font"].as_f64().unwrap() >= 11.0, "{width}: {chart}");
            let has_values = chart["hovers"].as_u64().unwrap() > 0;
            assert_eq!(has_values, width > 600, "phones have no pointer: {width}: {chart}");
        }
        let ends = charts.iter().map(|chart| chart["place"].as_u64().unwrap());
        let last = charts.iter().filter_map(|chart| chart["place"].as_u64()).max();
        let left = ends.filter(|end| Some(*end) != last).count();
        let right =
            charts.iter().filter(|it| it["width"].as_f64().unwrap() < f64::from(width) / 2.0);
        assert!(width < 600 || 2 * left == right.count(), "one stands alone: {charts:?}");
        assert!(too_wide.is_empty(), "at {width}: {too_wide:#?}");
        let errors: Vec<_> = log.lines().filter(|line| line.contains(":CONSOLE")).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// Makes the record of a job of 64 GPUs from that of two ranks.
#[test]
fn a_large_job_is_printed_on_five_pages() {
    let folder = Folder::new();
    folder.train_on(2, &FLAGS).expect(0);
    let mut record = folder.record();
    record["digest"] = Value::Null;
    let host = record["hosts"][0].clone();
    let gpu = |rank: usize| {
        let mut gpu = host.clone();
        let fields = gpu.as_object_mut().unwrap();
        fields.retain(|key, _| {
            ["seconds", "readings", "gauges", "counters", "series"].contains(&&**key)
        });
        for name in ["power_watts", "sm_clock_hertz", "temperature_celsius", "utilization_ratio"] {
            let values =
                vec![1.0 + rank as f64; gpu["series"]["seconds"].as_array().unwrap().len()];
            gpu["series"]["values"][name] = values.into();
            gpu["gauges"][name] = serde_json::json!({"mean": 1.0, "min": 1.0, "max": 1.0});
        }
        gpu
    };
    let rank = |rank: usize| {
        let mut of_rank = record["ranks"][rank % 2].clone();
        of_rank["rank"] = rank.into();
        of_rank["host"] = format!("gpu-node-{:03}.cluster.example", rank / 8).into();
        of_rank["gpu"] = gpu(rank);
        of_rank
    };
    let ranks: Vec<_> = (0..64).map(rank).collect();
    let hosts = (0..8).map(|number| {
        let mut host = host.clone();
        host["host"] = format!("gpu-node-{number:03}.cluster.example").into();
        host
    });
    let hosts: Vec<_> = hosts.collect();
    let warning = "its GPU's clocks were held down: hw_thermal_slowdown, 12 % of the time";
    let warnings = (0..8).map(|rank| serde_json::json!({"step": 9, "rank": rank, "text": warning}));
    record["anomalies"] = warnings.collect();
    record["ranks"] = ranks.into();
    record["hosts"] = hosts.into();
    let file = folder.sibling("large.json");
    std::fs::write(&file, record.to_string()).unwrap();
    let page = folder.sibling("large.html");
    run(&["report", &text(&file), "--html", &text(&page)]).expect(0);
    let pages = printed_pages(&page);
    assert!((3..=5).contains(&pages), "{pages} pages");
    let bytes = page.metadata().unwrap().len();
    assert!(bytes < 4 << 20, "{bytes} bytes");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("32 of 64 ranks") && html.contains("the slowest is rank"));
}

#[test]
fn several_runs_are_a_table_a_page_and_a_list() {
    let folder = Folder::new();
    let out = folder.text();
    let repeats = ["bench", "--repeats", "2", "--steps", "12", "--out", &out];
    run(&repeats).expect(0);
    let page = folder.sibling("runs.html");
    let shown = run(&["report", &out, "--html", &text(&page)]).expect(0);
    assert_eq!(shown.stdout.matches("| complete").count(), 2, "{}", shown.stdout);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(
        html.contains("<h1>2 runs, the newest: smoke: ") && html.contains("<h3>Speed of smoke (")
    );
    let heading = shown.stdout.lines().next().unwrap();
    let places = ["run", "workload", "model", "ranks", "started (UTC)", "status"].map(|name| {
        heading.find(&format!("| {name} ")).unwrap_or_else(|| panic!("{name}: {heading}"))
    });
    assert!(
        places.is_sorted() && heading.contains(" | step ms | FLOP/s per rank | MFU, causal "),
        "{heading}"
    );
    let markdown = run(&["report", "--markdown", &out]).expect(0).stdout;
    assert_eq!(markdown, shown.stdout, "the table is Markdown");
    let list: Value =
        serde_json::from_str(&run(&["report", "--json", &out]).expect(0).stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let one = text(&folder.path().join("repeat-01/record.json"));
    run(&["report", "--markdown", &one])
        .expect(0)
        .expect_stdout(&["### smoke (`", "| tokens/s (step clock) |"]);
    let nowhere = ["report", &one, "--html", "/nowhere/report.html"];
    run(&nowhere).expect(2).expect_stderr(&["/nowhere/report.html: cannot write"]);
}
