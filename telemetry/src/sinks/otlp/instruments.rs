//! The metrics of `prometheus/metrics.rs` as instruments of OpenTelemetry: the same names, kinds,
//! buckets and descriptions, changed by the same code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrics::{
    CounterFn, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

use super::super::prometheus::metrics::{self as described, BUCKETS_SECONDS, Described, Kind};

/// Every metric, by its name.
pub(super) struct Instruments {
    by_name: HashMap<String, Instrument>,
    totals: Arc<Totals>,
}

/// Last values of hardware counters: OpenTelemetry gets their growth.
type Totals = Mutex<HashMap<Key, u64>>;

enum Instrument {
    Counter(Counter<u64>),
    Gauge(Gauge<f64>),
    Histogram(Histogram<f64>),
}

/// An instrument with the values of its labels.
struct Labelled<I> {
    instrument: I,
    labels: Vec<KeyValue>,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        let named =
            |metric: Described| (metric.name.clone().into_owned(), Instrument::new(meter, metric));
        Self { by_name: described::all().into_iter().map(named).collect(), totals: Arc::default() }
    }
}

impl Instrument {
    fn new(meter: &Meter, Described { name, kind, help }: Described) -> Self {
        let unit = unit(&name);
        match kind {
            Kind::Counter => {
                let builder = meter.u64_counter(name).with_description(help).with_unit(unit);
                Self::Counter(builder.build())
            }
            Kind::Gauge => {
                let builder = meter.f64_gauge(name).with_description(help).with_unit(unit);
                Self::Gauge(builder.build())
            }
            Kind::Histogram => {
                let builder = meter.f64_histogram(name).with_description(help).with_unit(unit);
                Self::Histogram(builder.with_boundaries(BUCKETS_SECONDS.to_vec()).build())
            }
        }
    }
}

/// Endings of names, and their units in UCUM.
const UNITS: [(&str, &str); 9] = [
    ("_bits_per_second", "bit/s"),
    ("_bytes_per_second", "By/s"),
    ("_bytes", "By"),
    ("_celsius", "Cel"),
    ("_hertz", "Hz"),
    ("_joules", "J"),
    ("_ratio", "1"),
    ("_seconds", "s"),
    ("_watts", "W"),
];

/// Returns the unit that a name ends with, in UCUM; empty if it has none.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let found = UNITS.iter().find(|(ending, _)| name.ends_with(ending));
    found.map_or("", |(_, unit)| unit)
}

impl<I> Labelled<I> {
    fn new(instrument: &I, key: &Key) -> Arc<Self>
    where
        I: Clone,
    {
        let label = |label: &metrics::Label| {
            KeyValue::new(label.key().to_owned(), label.value().to_owned())
        };
        Arc::new(Self { instrument: instrument.clone(), labels: key.labels().map(label).collect() })
    }
}

/// An unknown name, or one of another kind, is a programmer's error.
impl Recorder for Instruments {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> metrics::Counter {
        match self.by_name.get(key.name()) {
            Some(Instrument::Counter(counter)) => {
                let growing = Growing {
                    labelled: Labelled::new(counter, key),
                    key: key.clone(),
                    totals: Arc::clone(&self.totals),
                };
                metrics::Counter::from_arc(Arc::new(growing))
            }
            _ => unreachable!("{} is no described counter", key.name()),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> metrics::Gauge {
        match self.by_name.get(key.name()) {
            Some(Instrument::Gauge(gauge)) => metrics::Gauge::from_arc(Labelled::new(gauge, key)),
            _ => unreachable!("{} is no described gauge", key.name()),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        match self.by_name.get(key.name()) {
            Some(Instrument::Histogram(histogram)) => {
                metrics::Histogram::from_arc(Labelled::new(histogram, key))
            }
            _ => unreachable!("{} is no described histogram", key.name()),
        }
    }
}

/// A counter that is given either growth or its value.
struct Growing {
    labelled: Arc<Labelled<Counter<u64>>>,
    key: Key,
    totals: Arc<Totals>,
}

impl CounterFn for Growing {
    fn increment(&self, value: u64) {
        self.labelled.instrument.add(value, &self.labelled.labels);
    }

    fn absolute(&self, value: u64) {
        let mut totals = self.totals.lock().expect("no thread panics with it");
        let before = totals.insert(self.key.clone(), value);
        self.increment(growth(before, value));
    }
}

/// Growth of a hardware counter. Its first value is 0 here, because it counts since the driver
/// started, and a sum is reported with the start of this process. A counter that became smaller has
/// restarted at 0; the sum continues.
fn growth(before: Option<u64>, value: u64) -> u64 {
    match before {
        None => 0,
        Some(before) if value < before => value,
        Some(before) => value - before,
    }
}

impl GaugeFn for Labelled<Gauge<f64>> {
    fn increment(&self, _: f64) {
        unreachable!("gauges of a run are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges of a run are set");
    }

    fn set(&self, value: f64) {
        self.instrument.record(value, &self.labels);
    }
}

impl HistogramFn for Labelled<Histogram<f64>> {
    fn record(&self, value: f64) {
        self.instrument.record(value, &self.labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_names() {
        let of = |name: &str| unit(name);
        assert_eq!(of("yardstick_step_duration_seconds"), "s");
        assert_eq!(of("yardstick_communication_bytes_total"), "By");
        assert_eq!(of("yardstick_steps_total"), "");
        assert_eq!(of("yardstick_gpu_energy_joules_total"), "J");
        assert_eq!(of("yardstick_gpu_power_watts"), "W");
        assert_eq!(of("yardstick_gpu_sm_clock_hertz"), "Hz");
        assert_eq!(of("yardstick_gpu_temperature_celsius"), "Cel");
        assert_eq!(of("yardstick_gpu_pcie_bytes_per_second"), "By/s");
        assert_eq!(of("yardstick_rdma_rate_bits_per_second"), "bit/s");
        assert_eq!(of("yardstick_host_cpu_ratio"), "1");
    }

    #[test]
    fn a_counter_of_the_hardware_begins_at_0() {
        let values = [7_000, 7_005, 7_005, 3];
        let befores = std::iter::once(None).chain(values.into_iter().map(Some));
        let grown: Vec<_> = befores.zip(values).map(|(before, now)| growth(before, now)).collect();
        assert_eq!(grown, [0, 5, 0, 3]);
    }
}
