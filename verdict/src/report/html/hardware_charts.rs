//! Charts of the hardware over time: a line for each GPU or host.

use super::canvas::{Axis, Chart, Ink};
use super::charts::{from_zero, short};
use super::figure::{Figure, arranged};
use record::Record;
use record::hardware::{HardwareSummary, Series};
use record::text::number_format;

/// Quantity of each GPU or host that a chart shows.
struct Shown {
    title: &'static str,
    caption: &'static str,
    /// Name in the record's series.
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

/// A GPU or a host, and its readings.
struct Machine<'record> {
    name: String,
    series: &'record Series,
}

impl<'record> Machine<'record> {
    fn of(name: String, summary: &'record HardwareSummary) -> Option<Self> {
        Some(Self { name, series: summary.series.as_ref()? })
    }
}

/// Maximum number of named lines; more lines share one colour, and the legend omits them.
const NAMED_MAX: usize = 8;

/// Draws the charts of hardware that the record has figures for.
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
    arranged(of_gpus.chain(of_hosts))
}

fn chart<'a>(shown: &'a Shown, machines: &'a [Machine<'_>]) -> Option<Figure<'a>> {
    let lines: Vec<_> = machines.iter().filter_map(|machine| line(shown, machine)).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let end = points().map(|point| point.0).reduce(f64::max)?;
    if !points().any(|point| point.1 > 0.0) {
        return None;
    }
    let chart = Chart {
        title: shown.title.into(),
        caption: shown.caption.into(),
        x: Axis { label: "s since the first step", range: 0.0..end.max(0.1), format: short },
        y: Axis {
            label: shown.unit,
            range: from_zero(points().map(|point| point.1)),
            format: shown.format,
        },
    };
    let is_named = lines.len() <= NAMED_MAX;
    let ink = move |number: usize| Ink::Series(if is_named { number as u8 } else { 0 });
    let names = lines.iter().enumerate().map(|(number, line)| (line.name, ink(number)));
    let names: Vec<_> = names.filter(|_| is_named && lines.len() > 1).collect();
    let texts = hovers(&lines, shown.format);
    let figure = Figure::new(chart, move |canvas| {
        for (number, line) in lines.iter().enumerate() {
            canvas.line(&line.points, ink(number));
        }
        canvas.hover_nearest(&texts);
    });
    Some(if names.is_empty() { figure } else { figure.with_legend(names) })
}

/// Builds the hover text of each moment of the first line: the values of all lines that are named,
/// or the least and the largest.
fn hovers(lines: &[Line<'_>], format: fn(f64) -> String) -> Vec<(f64, String)> {
    let moments = lines.first().map(|line| &line.points[..]).unwrap_or_default();
    let text = |second: f64| {
        let known = lines.iter().filter_map(|line| Some((line.name, line.nearest(second)?)));
        let known: Vec<_> = known.filter(|(_, value)| value.is_finite()).collect();
        let mut text = format!("{second:.1} s");
        if lines.len() <= NAMED_MAX {
            let line = |(name, value): &(&str, f64)| format!("\n{name} {}", format(*value));
            text.extend(known.iter().map(line));
        } else {
            let values = || known.iter().map(|(_, value)| *value);
            let range = values().reduce(f64::min).zip(values().reduce(f64::max));
            let range = range.map(|(least, most)| (format(least), format(most)));
            text.extend(range.map(|(least, most)| format!("\n{least} to {most}")));
        }
        text
    };
    moments.iter().map(|(second, _)| (*second, text(*second))).collect()
}

/// Line of one GPU or host.
struct Line<'machine> {
    name: &'machine str,
    /// Points of the line; a value that was not read is NaN, which leaves a gap.
    points: Vec<(f64, f64)>,
}

impl Line<'_> {
    /// Returns the value nearest to a moment: machines are not read at the same time.
    fn nearest(&self, second: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < second);
        let near = self.points.get(after.saturating_sub(1)..self.points.len().min(after + 1))?;
        let distance = |point: &&(f64, f64)| (point.0 - second).abs();
        let nearest = near.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.map(|point| point.1)
    }
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
