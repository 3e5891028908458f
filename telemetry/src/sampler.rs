//! The thread of a rank that reads the hardware.

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

/// What to read, and who is told.
#[derive(Debug)]
pub struct Sampled {
    /// From one reading to the next.
    pub interval: Duration,
    /// Address of this rank's GPU.
    pub gpu: Option<String>,
    /// Whether this rank reads the host and its ports: one of each node does.
    pub reads_host: bool,
    /// Where `/proc` and `/sys` of the host are.
    pub root: PathBuf,
    /// Takes the readings.
    pub events: Events,
    /// Takes the alerts of this rank's GPU.
    pub alert: Arc<SharedAlert>,
}

/// Reads until it is dropped: at once, at the interval, and once more at the end.
#[derive(Debug)]
pub struct Sampler {
    /// Its end ends the thread.
    end: Option<Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

/// How long the start waits for the first readings, so that they are of before the first step: with
/// many GPUs a driver may need seconds.
const FIRST_READINGS: Duration = Duration::from_secs(10);

/// How long the end waits for the last readings: a driver that has lost its GPU may not answer.
const LAST_READINGS: Duration = Duration::from_secs(2);

impl Sampler {
    /// Starts to read, and returns after the first time. Without a thread a run is as good as with
    /// one, except that its record has no hardware.
    pub fn start(sampled: Sampled) -> Self {
        let (end, until) = mpsc::channel::<()>();
        let (ends, ended) = mpsc::channel();
        let (read_first, has_read) = mpsc::channel();
        let read = move || {
            let _ends: Sender<()> = ends;
            let mut sources = Sources::open(&sampled);
            sources.tell(&sampled);
            let _ = read_first.send(());
            while until.recv_timeout(sampled.interval) == Err(RecvTimeoutError::Timeout) {
                sources.refresh();
                sources.tell(&sampled);
            }
            sources.refresh();
            sources.tell(&sampled);
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

/// What this rank reads.
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

    fn tell(&self, sampled: &Sampled) {
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
