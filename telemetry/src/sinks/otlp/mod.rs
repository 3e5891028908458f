//! The sink of OpenTelemetry: every rank sends its metrics and its spans to a collector, by OTLP
//! over HTTP.
//!
//! The telemetry thread only adds to sums and to a queue, which the threads of the SDK send at
//! intervals (`collector.rs`). The metrics (`instruments.rs`) are those of Prometheus. Each event
//! with a duration becomes a span (`spans.rs`).

mod collector;
mod instruments;
mod spans;

use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use device::threads;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanProcessor};

use super::prometheus::metrics;
use super::prometheus::ring::MetricEvent;
use crate::event::Event;
use crate::options::{OtlpOptions, TelemetryOptions};
use crate::sink::Sink;
use collector::{Collector, Error};
use instruments::Instruments;
use spans::Spans;

/// Interval at which metrics are sent; spans are sent as often, or when there are many.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait for a collector that does not answer at the end of a run.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of threads of the SDK, which panics without them, and of the HTTP client.
const THREADS: usize = 3;

/// Sink of the spans and metrics of one rank.
pub(crate) struct Otlp {
    rank: String,
    instruments: Instruments,
    spans: Spans,
    meters: SdkMeterProvider,
    collector: Collector,
}

impl Otlp {
    /// Starts the threads that send. Only they find out whether there is a collector.
    ///
    /// # Errors
    /// When the URL cannot be used, or a thread cannot be started.
    pub(crate) fn start(rank: &TelemetryOptions, options: &OtlpOptions) -> Result<Self, Error> {
        threads::require(THREADS, "otlp")?;
        let collector = Collector::new(options)?;
        let resource = resource(rank, options);
        let reader = PeriodicReader::builder(collector.metric_exporter()?)
            .with_interval(METRICS_INTERVAL)
            .build();
        let meters =
            SdkMeterProvider::builder().with_reader(reader).with_resource(resource.clone()).build();
        let mut queue = BatchSpanProcessor::builder(collector.span_exporter()?).build();
        queue.set_resource(&resource);
        Ok(Self {
            rank: rank.rank.to_string(),
            instruments: Instruments::new(&meters.meter("yardstick")),
            spans: Spans::new(queue, rank.rank, options),
            meters,
            collector,
        })
    }

    /// Sends the rest on a thread of its own, which may hang.
    fn send_rest(&mut self) -> Result<(), String> {
        let queue = self.spans.end(SystemTime::now());
        let meters = self.meters.clone();
        let (sent, is_sent) = mpsc::sync_channel(1);
        let send = move || {
            // A failed request has already caused a warning.
            let _ = queue.map(|queue| queue.shutdown_with_timeout(END_TIMEOUT));
            let _ = meters.shutdown_with_timeout(END_TIMEOUT);
            let _ = sent.send(());
        };
        threads::spawn("otlp-end", send).map_err(|error| error.to_string())?;
        let late = |_| format!("did not take the rest within {END_TIMEOUT:?} of the end");
        is_sent.recv_timeout(END_TIMEOUT).map_err(late)
    }
}

impl Sink for Otlp {
    fn take(&mut self, event: &Event) {
        if let Some(event) = MetricEvent::of(event) {
            metrics::with(&self.instruments, || metrics::take(&self.rank, event));
        }
        self.spans.take(event, SystemTime::now());
    }
}

/// Sends the rest, for as long as the end of a run may wait.
impl Drop for Otlp {
    fn drop(&mut self) {
        if let Err(why) = self.send_rest() {
            self.collector.warn(&why);
        }
    }
}

/// Resource of all metrics and spans of a rank; `OTEL_RESOURCE_ATTRIBUTES` adds to it.
fn resource(rank: &TelemetryOptions, options: &OtlpOptions) -> Resource {
    Resource::builder()
        .with_service_name("yardstick")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("host.name", rank.host.clone()),
            KeyValue::new("yardstick.rank", rank.rank as i64),
            KeyValue::new("yardstick.world", rank.world as i64),
            KeyValue::new("yardstick.workload", options.workload.clone()),
            KeyValue::new("yardstick.workload_id", options.workload_id.clone()),
            KeyValue::new("yardstick.run", options.run.clone()),
            KeyValue::new("yardstick.attempt", i64::from(options.attempt)),
        ])
        .build()
}
