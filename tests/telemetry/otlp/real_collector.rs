//! Real OpenTelemetry collector between yardstick and the test: it decodes what it receives, prints
//! how much that is, and forwards it (`make soak-otlp`).

use std::ffi::OsStr;
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longest time until it has started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The running program; killed when dropped.
pub(crate) struct RealCollector {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl RealCollector {
    /// Starts the program, which sends everything on to a URL before it answers.
    pub(crate) fn start(program: &OsStr, target: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = support::free_port();
        let file = folder.path().join("collector.yaml");
        std::fs::write(&file, configuration(port, target)).unwrap();
        let child = Command::new(program).arg("--config").arg(&file).spawn().unwrap();
        let started = Self { child, port, _folder: folder };
        let end = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "{program:?} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        started
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for RealCollector {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Without queues, so that nothing is left when the run has ended.
fn configuration(port: u16, target: &str) -> String {
    format!(
        "receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: normal
    use_internal_logger: false
  otlp_http:
    endpoint: {target}
    compression: none
    sending_queue:
      enabled: false
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [debug, otlp_http]
    traces:
      receivers: [otlp]
      exporters: [debug, otlp_http]
"
    )
}
