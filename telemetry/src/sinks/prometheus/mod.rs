//! The sink of Prometheus: every rank writes its events to shared memory, and local rank 0 serves
//! those of all ranks of its node over HTTP.

mod endpoint;
pub(super) mod metrics;
pub(super) mod ring;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::event::Event;
use crate::options::PrometheusOptions;
use crate::sink::Sink;
use endpoint::{Endpoint, Served};
use ring::{MetricEvent, Writer, path};

/// Sink of one rank.
pub(crate) struct Prometheus {
    /// Ring of this rank; `None` after an error.
    ring: Option<Writer>,
    path: PathBuf,
    /// Endpoint, on local rank 0.
    endpoint: Option<Endpoint>,
}

impl Prometheus {
    /// Creates the ring of this rank, and on local rank 0 the endpoint.
    ///
    /// # Errors
    /// When the ring cannot be created or the address cannot be used.
    pub(crate) fn start(dir: &Path, options: &PrometheusOptions) -> std::io::Result<Self> {
        let run = name_of(dir, options.attempt);
        let path = path(&run, options.local_rank);
        let ring = Writer::create(&path)?;
        let mut started = Self { ring: Some(ring), path, endpoint: None };
        if options.local_rank == 0 {
            let served = Served {
                run,
                ranks: options.ranks.clone(),
                info: options.info.clone(),
                linger: options.linger,
            };
            started.endpoint = Some(Endpoint::start(options.address, served)?);
        }
        Ok(started)
    }

    /// Returns the address of the endpoint, on local rank 0.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.address)
    }
}

impl Sink for Prometheus {
    fn take(&mut self, event: &Event) {
        let Some(event) = MetricEvent::of(event) else { return };
        let written = self.ring.as_mut().map(|ring| ring.write(&event));
        if let Some(Err(error)) = written {
            let path = self.path.display();
            tracing::warn!("no further metrics of this rank: {path}: {error}");
            self.ring = None;
        }
    }

    fn interrupt(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.skip_linger();
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.endpoint = None; // reads what is left
        drop(std::fs::remove_file(&self.path)); // whoever has it open reads on
    }
}

/// Returns a name of the attempt on this machine.
fn name_of(dir: &Path, attempt: u32) -> String {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let digest = blake3::hash(dir.as_os_str().as_encoded_bytes());
    let digest: String = digest.to_hex().chars().take(16).collect();
    format!("{digest}-{attempt}")
}
