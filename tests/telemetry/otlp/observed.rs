//! Run of two ranks, and the data that a collector received from it: the one of the test, behind a
//! real one where `YARDSTICK_OTEL_COLLECTOR` names its program.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::resource::v1::Resource;

use super::attributes::{integer, text};
use super::real_collector::RealCollector;
use super::receiver::{Collector, Got};
use support::Folder;

/// Steps of the run.
pub(crate) const STEPS: u64 = 12;

/// The run.
pub(crate) struct Observed {
    pub(crate) folder: Folder,
    pub(crate) got: Got,
    /// Times before and after the run.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}

/// Run that all tests share.
pub(crate) static RUN: LazyLock<Observed> = LazyLock::new(observe);

fn observe() -> Observed {
    let folder = Folder::new();
    let collector = Collector::start();
    let program = std::env::var_os("YARDSTICK_OTEL_COLLECTOR");
    let between = program.map(|program| RealCollector::start(&program, &collector.url()));
    let url = between.as_ref().map_or_else(|| collector.url(), RealCollector::url);
    let began_ns = unix_ns();
    let saves = ["--checkpoint-every", "5steps", "--set", "checkpoint.background=false"];
    let flags = [&["--otlp", &url, "--eval-every", "6"][..], &saves].concat();
    folder.train_on(2, &[&["--steps", &STEPS.to_string()], &flags[..]].concat()).expect(0);
    Observed { folder, got: collector.got(), began_ns, ended_ns: unix_ns() }
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

impl Observed {
    /// The rank that a resource is of, whose other attributes must be those of the run.
    #[track_caller]
    pub(crate) fn rank(&self, resource: Option<&Resource>) -> u64 {
        let attributes = &resource.unwrap().attributes;
        let record = self.folder.record();
        assert_eq!(text(attributes, "service.name"), "yardstick");
        assert_eq!(text(attributes, "service.version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(text(attributes, "host.name"), record["ranks"][0]["host"]);
        assert_eq!(text(attributes, "yardstick.workload"), "smoke");
        assert_eq!(text(attributes, "yardstick.workload_id"), record["workload"]["id"]);
        assert_eq!(integer(attributes, "yardstick.attempt"), 1);
        assert_eq!(integer(attributes, "yardstick.world"), 2);
        integer(attributes, "yardstick.rank")
    }
}
