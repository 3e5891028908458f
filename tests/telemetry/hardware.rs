//! Host and RDMA ports in record, report and warnings: of a planted `/proc` and `/sys`, whose
//! counters grow during a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use support::{Folder, run, text};

/// Files of a host that change all the time, until it is dropped.
struct Host {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Host {
    fn start(root: PathBuf) -> Self {
        plant(&root, 0);
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let grow = move || {
            let mut count = 0;
            while !until.load(Ordering::Relaxed) {
                count += 1;
                plant(&root, count);
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        Self { ends, thread: Some(std::thread::spawn(grow)) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Plants a host of which a quarter of the processors' time is stolen, with a port that moves data
/// and counts errors, and a package of processors that has used 2 J more each time.
fn plant(root: &Path, count: u64) {
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    let package = "sys/class/powercap/intel-rapl:0";
    let [user, stolen] = [300 * count, 100 * count];
    let files = [
        ("proc/stat", format!("cpu  {user} 0 0 0 0 0 0 {stolen} 0 0\n")),
        ("proc/meminfo", "MemTotal: 16384 kB\nMemAvailable: 2048 kB\n".to_owned()),
        (&format!("{port}/state"), "4: ACTIVE\n".to_owned()),
        (&format!("{port}/counters/port_xmit_data"), (1000 * count).to_string()),
        (&format!("{port}/counters/symbol_error"), count.to_string()),
        (&format!("{package}/name"), "package-0\n".to_owned()),
        (&format!("{package}/max_energy_range_uj"), "262143328850".to_owned()),
        (&format!("{package}/energy_uj"), (2_000_000 * count).to_string()),
    ];
    for (file, content) in files {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Whoever reads sees the old content or the new one.
        let new = path.with_extension("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, path).unwrap();
    }
}

#[test]
fn a_host_and_its_ports_are_in_record_report_and_warnings() {
    let folder = Folder::new();
    let root = folder.sibling("host");
    let host = Host::start(root.clone());
    let settings = [
        format!("telemetry.host_root={}", text(&root)),
        "telemetry.hardware_interval=50ms".to_owned(),
        "telemetry.price_per_node_hour=3.6".to_owned(),
    ];
    let mut flags = vec!["train", "--steps", "30"];
    let out = folder.text();
    flags.extend(["--out", &out]);
    settings.iter().for_each(|setting| flags.extend(["--set", setting]));
    let finished = run(&flags).expect(0);
    drop(host);

    let number = |value: &Value| value.as_f64().unwrap();
    let record = folder.record();
    let found = &record["hosts"][0];
    let steal = number(&found["gauges"]["cpu_ratio.steal"]["mean"]);
    assert!((steal - 0.25).abs() < 1e-9, "{steal}");
    assert_eq!(found["gauges"]["memory_available_bytes"]["max"], 2048.0 * 1024.0);
    let port = &found["ports"][0];
    assert_eq!(
        (&port["port"], &port["gauges"]["active"]["min"]),
        (&"mlx5_0/1".into(), &1.0.into())
    );
    let sent = number(&port["counters"]["bytes.transmit"]["total"]);
    assert!(sent > 0.0 && sent % 4000.0 == 0.0, "words of four bytes: {sent}");
    let energy = &record["energy"];
    let joules = number(&found["counters"]["cpu_energy_joules"]["total"]);
    assert_eq!((number(&energy["cpu_joules"]), &energy["gpu_joules"]), (joules, &Value::Null));
    let tokens = number(&record["steps"]["tokens"]);
    assert_eq!(number(&energy["cpu_joules_per_token"]), joules / tokens);
    let rate = number(&record["tokens_per_second"]["wall"]["total"]);
    let cost = number(&record["cost"]["per_billion_tokens"]);
    assert!((cost / (1e6 / rate) - 1.0).abs() < 1e-9, "0.001 a second: {cost}");

    for said in [
        "the hypervisor gave processors' time to others (steal): ",
        "RDMA ports with symbol_error: ",
        " mlx5_0/1 ",
    ] {
        assert!(finished.stderr.contains(said), "{said}: {}", finished.stderr);
    }
    let report = run(&["report", &out]).expect(0).stdout;
    assert!(report.contains("25.0% stolen") && report.contains("per token by processors"));
}

#[test]
fn hardware_that_is_not_to_be_read_is_not_read() {
    let folder = Folder::new();
    let out = folder.text();
    let never = "telemetry.hardware_interval=0s";
    run(&["train", "--steps", "3", "--out", &out, "--set", never]).expect(0);
    assert_eq!(folder.record()["hosts"], Value::Array(Vec::new()));
    let price = "telemetry.price_per_node_hour=-1";
    let refused = run(&["train", "--steps", "3", "--set", price]).expect(2);
    refused.expect_stderr(&["telemetry.price_per_node_hour = -1: expected a price above 0"]);
}
