//! Charts of what moves bytes: communication, checkpoints, and their copies.

use super::canvas::{Axis, Chart, Ink, figure};
use super::charts::{from_zero, middle_of, short, steps_axis};
use crate::number_format;
use crate::record::{Checkpoints, Record};

/// Those that the record has figures for.
pub(super) fn all(record: &Record) -> String {
    let checkpoints = record.checkpoints.as_ref();
    let charts =
        [communication(record), checkpoints.and_then(saves), checkpoints.and_then(bandwidths)];
    charts.into_iter().flatten().collect()
}

fn bytes_per_second(value: f64) -> String {
    number_format::scaled(value, "B/s")
}

fn communication(record: &Record) -> Option<String> {
    record.collectives.as_ref()?;
    let series = &record.steps.as_ref()?.series;
    let busy = series.iter().filter(|block| block.comm_total_ns > 0);
    let points: Vec<_> = busy
        .map(|block| {
            let rate = block.comm_bytes as f64 / (block.comm_total_ns as f64 / 1e9);
            (middle_of(block), rate)
        })
        .collect();
    let chart = Chart {
        title: "Communication",
        caption: "Bytes of the communicated buffers over the time in which any was in flight, on \
                  rank 0.",
        x: steps_axis(series)?,
        y: Axis {
            label: "rate",
            range: from_zero(points.iter().map(|point| point.1)),
            format: bytes_per_second,
        },
    };
    (!points.is_empty()).then(|| figure(&chart, &[], |canvas| canvas.line(&points, Ink::Series(0))))
}

fn saves(checkpoints: &Checkpoints) -> Option<String> {
    let saved = &checkpoints.saved;
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let (first, last) = (saved.first()?.step as f64, saved.last()?.step as f64);
    let margin = ((last - first) * 0.05).max(1.0);
    let chart = Chart {
        title: "Checkpoints",
        caption: "Each committed checkpoint: from its trigger to its commit, and for how long \
                  training stopped.",
        x: Axis {
            label: "step",
            range: first - margin..last + margin,
            format: number_format::thousands,
        },
        y: Axis {
            label: "ms",
            range: from_zero(saved.iter().map(|save| ms(save.save_ns))),
            format: short,
        },
    };
    let legend = [("until committed", Ink::Series(0)), ("training stopped", Ink::Series(1))];
    let width = margin * 0.2;
    Some(figure(&chart, &legend, |canvas| {
        for save in saved {
            let step = save.step as f64;
            let bar = |height: f64| [(step - width, 0.0), (step + width, height)];
            canvas.bar(bar(ms(save.save_ns)), Ink::Series(0), 1.0);
            canvas.bar(bar(ms(save.stall_ns)), Ink::Series(1), 1.0);
        }
    }))
}

fn bandwidths(checkpoints: &Checkpoints) -> Option<String> {
    let mut rates = vec![(format!("saved to {}", checkpoints.tier), checkpoints.bytes_per_second)];
    rates.extend(
        checkpoints
            .promoted
            .iter()
            .filter_map(|tier| Some((format!("copied to {}", tier.tier), tier.bytes_per_second?))),
    );
    let count = rates.len() as f64;
    let chart = Chart {
        title: "Storage",
        caption: "Bytes per second of checkpoints, over all ranks and all of them.",
        x: Axis {
            label: "rate",
            range: from_zero(rates.iter().map(|rate| rate.1)),
            format: bytes_per_second,
        },
        y: Axis { label: "tier", range: -0.5..count - 0.5, format: |_| String::new() },
    };
    Some(figure(&chart, &[], |canvas| {
        for (row, (name, rate)) in rates.into_iter().rev().enumerate() {
            let row = row as f64;
            canvas.bar([(0.0, row - 0.25), (rate, row + 0.1)], Ink::Series(0), 1.0);
            canvas.text((0.0, row + 0.36), format!("{name}: {}", bytes_per_second(rate)));
        }
    }))
}
