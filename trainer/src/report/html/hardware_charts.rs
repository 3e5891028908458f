//! Charts of the hardware over time: a line for each GPU or host.

use super::canvas::{Axis, Chart, Ink, figure};
use super::charts::{from_zero, short};
use crate::hardware::{HardwareSummary, Series};
use crate::number_format;
use crate::record::Record;

/// What a chart shows of each GPU or host.
struct Shown {
    title: &'static str,
    caption: &'static str,
    /// The name in the record's series.
    name: &'static str,
    unit: &'static str,
    format: fn(f64) -> String,
}

const GPUS: [Shown; 4] = [
    Shown {
        title: "Power of GPUs",
        caption: "Power draw of each rank's GPU.",
        name: "power_watts",
        unit: "W",
        format: number_format::thousands,
    },
    Shown {
        title: "Clocks of GPUs",
        caption: "Clock of the multiprocessors. One that falls under load is held down.",
        name: "sm_clock_hertz",
        unit: "clock",
        format: hertz,
    },
    Shown {
        title: "Temperature of GPUs",
        caption: "Temperature of each rank's chip.",
        name: "temperature_celsius",
        unit: "C",
        format: short,
    },
    Shown {
        title: "Utilization of GPUs",
        caption: "Share of the time in which a kernel ran.",
        name: "utilization_ratio",
        unit: "share",
        format: number_format::percent,
    },
];

const HOSTS: [Shown; 5] = [
    Shown {
        title: "Processors",
        caption: "Share of all processors' time in programs.",
        name: "cpu_ratio.user",
        unit: "share",
        format: number_format::percent,
    },
    Shown {
        title: "Stolen time",
        caption: "Share of all processors' time that the hypervisor gave to others.",
        name: "cpu_ratio.steal",
        unit: "share",
        format: number_format::percent,
    },
    Shown {
        title: "Waiting for processors",
        caption: "Share of the time in which at least one task waited for a processor (PSI).",
        name: "pressure_ratio.cpu",
        unit: "share",
        format: number_format::percent,
    },
    Shown {
        title: "Network",
        caption: "Bytes sent by network interfaces.",
        name: "network_bytes.transmit",
        unit: "rate",
        format: bytes_per_second,
    },
    Shown {
        title: "Disks",
        caption: "Bytes written to disks.",
        name: "disk_bytes.write",
        unit: "rate",
        format: bytes_per_second,
    },
];

/// A GPU or a host, and what it did.
struct Machine<'record> {
    name: String,
    series: &'record Series,
}

impl<'record> Machine<'record> {
    fn of(name: String, summary: &'record HardwareSummary) -> Option<Self> {
        Some(Self { name, series: summary.series.as_ref()? })
    }
}

/// With more lines than this they have one colour, and the legend does not name them.
const NAMED_MAX: usize = 8;

/// Those that the record has figures for.
pub(super) fn all(record: &Record) -> String {
    let gpus = record
        .ranks
        .iter()
        .filter_map(|rank| Machine::of(format!("rank {}", rank.rank), rank.gpu.as_ref()?));
    let hosts = record.hosts.iter().filter_map(|it| Machine::of(it.host.clone(), &it.summary));
    let gpus: Vec<_> = gpus.collect();
    let hosts: Vec<_> = hosts.collect();
    let of_gpus = GPUS.iter().filter_map(|shown| chart(shown, &gpus));
    let of_hosts = HOSTS.iter().filter_map(|shown| chart(shown, &hosts));
    of_gpus.chain(of_hosts).collect()
}

fn chart(shown: &Shown, machines: &[Machine<'_>]) -> Option<String> {
    let lines: Vec<_> = machines.iter().filter_map(|machine| line(shown, machine)).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let end = points().map(|point| point.0).reduce(f64::max)?;
    if !points().any(|point| point.1 > 0.0) {
        return None;
    }
    let chart = Chart {
        title: shown.title,
        caption: shown.caption,
        x: Axis { label: "s since the first step", range: 0.0..end.max(0.1), format: short },
        y: Axis {
            label: shown.unit,
            range: from_zero(points().map(|point| point.1)),
            format: shown.format,
        },
    };
    let is_named = lines.len() <= NAMED_MAX;
    let ink = |number: usize| Ink::Series(if is_named { number as u8 } else { 0 });
    let legend: Vec<_> =
        lines.iter().enumerate().map(|(number, line)| (line.name, ink(number))).collect();
    let legend = if is_named && lines.len() > 1 { &legend[..] } else { &[] };
    Some(figure(&chart, legend, |canvas| {
        for (number, line) in lines.iter().enumerate() {
            canvas.line(&line.points, ink(number));
        }
    }))
}

/// The line of one GPU or host.
struct Line<'machine> {
    name: &'machine str,
    /// What was not read is not a number: a gap.
    points: Vec<(f64, f64)>,
}

fn line<'machine>(shown: &Shown, machine: &'machine Machine<'_>) -> Option<Line<'machine>> {
    let values = machine.series.values.get(shown.name)?;
    let points = machine.series.seconds.iter().zip(values);
    let points = points.map(|(second, value)| (*second, value.unwrap_or(f64::NAN))).collect();
    Some(Line { name: &machine.name, points })
}

fn hertz(value: f64) -> String {
    number_format::scaled(value, "Hz")
}

fn bytes_per_second(value: f64) -> String {
    number_format::scaled(value, "B/s")
}
