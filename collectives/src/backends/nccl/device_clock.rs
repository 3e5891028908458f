//! Conversion of a device's events to times of the host's clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::{Cuda, Error, Event, Stream};

/// Compares events with an event that is recorded now, on a stream without other work.
#[derive(Debug)]
pub(super) struct DeviceClock {
    idle: Arc<Stream>,
    now: Event,
}

/// A moment on both clocks, until the next one is taken.
#[derive(Debug)]
pub(super) struct Moment<'clock> {
    event: &'clock Event,
    instant: Instant,
}

impl DeviceClock {
    pub(super) fn new(device: &Cuda) -> Result<Self, Error> {
        Ok(Self { idle: device.new_urgent_stream()?, now: Event::new(device)? })
    }

    /// The present.
    pub(super) fn now(&mut self) -> Result<Moment<'_>, Error> {
        self.now.record(&self.idle)?;
        self.now.wait()?;
        Ok(Moment { event: &self.now, instant: Instant::now() })
    }
}

impl Moment<'_> {
    /// Time at which the device passed an event, before this moment.
    pub(super) fn instant_of(&self, event: &Event) -> Result<Instant, Error> {
        let elapsed = Duration::from_nanos(event.elapsed_ns(self.event)?);
        Ok(self.instant.checked_sub(elapsed).unwrap_or(self.instant))
    }
}
