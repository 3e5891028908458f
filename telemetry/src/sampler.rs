//! Sampler of the hardware: a thread of each rank.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::hardware::alert::SharedAlert;
use crate::hardware::gpu::{self, Gpu};
use crate::hardware::host::{self, Host};
use crate::hardware::port::{self, Port};
use crate::hardware::quantity::{Quantity, Readings, Source};
use crate::hardware::summary::Missing;
use crate::stream::Events;

/// Hardware to sample, and receivers of the readings.
#[derive(Debug)]
pub struct Sampled {
    /// Time from one reading to the next.
    pub interval: Duration,
    /// Address of this rank's GPU.
    pub gpu: Option<String>,
    /// True if this rank reads the host and its ports: one rank of each node does.
    pub reads_host: bool,
    /// Folder of the host's `/proc` and `/sys`.
    pub root: PathBuf,
    /// Receiver of the readings.
    pub events: Events,
    /// Receiver of the alerts of this rank's GPU.
    pub alert: Arc<SharedAlert>,
}

/// Samples until it is dropped: at once, at the interval, and once more at the end.
#[derive(Debug)]
pub struct Sampler {
    /// Ends the thread when it is dropped.
    end: Option<Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

/// Longest wait for the first readings at the start, so that they precede the first step: with many
/// GPUs a driver may need seconds.
const FIRST_READINGS: Duration = Duration::from_secs(10);

/// Longest wait for the last readings at the end: a driver that has lost its GPU may not answer.
const LAST_READINGS: Duration = Duration::from_secs(2);

impl Sampler {
    /// Starts sampling, and returns after the first readings. If there is no thread, the run is
    /// unaffected, except that its record has no hardware.
    pub fn start(sampled: Sampled) -> Self {
        let (end, until) = mpsc::channel::<()>();
        let (ends, ended) = mpsc::channel();
        let (read_first, has_read) = mpsc::channel();
        let read = move || {
            let _ends: Sender<()> = ends;
            let mut sources = Sources::open(&sampled);
            sources.emit(&sampled);
            let _ = read_first.send(());
            while until.recv_timeout(sampled.interval) == Err(RecvTimeoutError::Timeout) {
                sources.refresh();
                sources.emit(&sampled);
            }
            sources.refresh();
            sources.emit(&sampled);
        };
        drop(device::threads::spawn("hardware", read));
        let _ = has_read.recv_timeout(FIRST_READINGS);
        Self { end: Some(end), ended }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end = None;
        let _ = self.ended.recv_timeout(LAST_READINGS);
    }
}

/// Sources that this rank reads.
struct Sources {
    started: Instant,
    gpu: Option<Gpu>,
    host: Option<Host>,
    ports: Vec<Port>,
}

impl Sources {
    fn open(sampled: &Sampled) -> Self {
        let gpu = sampled.gpu.as_deref().map(Gpu::open);
        if let Some(Err(why)) = &gpu {
            sampled.events.hardware_missing(Missing::Gpu(why.clone()));
        }
        let root: &Path = &sampled.root;
        let host = sampled.reads_host.then(|| Host::new(root));
        if let Some(why) = host.as_ref().and_then(Host::energy_missing) {
            sampled.events.hardware_missing(Missing::Energy(why.to_owned()));
        }
        Self {
            started: Instant::now(),
            gpu: gpu.and_then(Result::ok),
            host,
            ports: if sampled.reads_host { Port::all(root) } else { Vec::new() },
        }
    }

    fn refresh(&mut self) {
        self.gpu.iter_mut().for_each(Gpu::refresh);
        self.host.iter_mut().for_each(Host::refresh);
    }

    fn emit(&self, sampled: &Sampled) {
        if let Some(gpu) = &self.gpu {
            sampled.alert.set(gpu.alert());
            sampled.events.hardware(self.readings(Source::Gpu, &gpu::QUANTITIES, gpu));
        }
        if let Some(host) = &self.host {
            sampled.events.hardware(self.readings(Source::Host, &host::QUANTITIES, host));
        }
        for port in &self.ports {
            let source = Source::Port(port.name.clone());
            sampled.events.hardware(self.readings(source, &port::QUANTITIES, port));
        }
    }

    fn readings<T>(&self, source: Source, quantities: &[Quantity<T>], of: &T) -> Readings {
        let values = quantities.iter().map(|quantity| (quantity.read)(of)).collect();
        Readings { source, seconds: self.started.elapsed().as_secs_f64(), values }
    }
}
