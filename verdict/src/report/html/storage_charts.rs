//! Charts of data movement: communication, checkpoints, and their copies.

use super::canvas::{Axis, Chart, Ink};
use super::charts::{from_zero, hovers, middle_of, short, steps_axis};
use super::figure::{Figure, arranged};
use record::text::number_format::{self, milliseconds};
use record::{CheckpointSaved, Checkpoints, Record, StepBlock};

/// Draws the charts of data movement that the record has figures for.
pub(super) fn all(record: &Record) -> String {
    let checkpoints = record.checkpoints.as_ref();
    let charts =
        [communication(record), checkpoints.and_then(saves), checkpoints.and_then(bandwidths)];
    arranged(charts.into_iter().flatten())
}

fn bytes_per_second(value: f64) -> String {
    number_format::scaled(value, "B/s")
}

fn communication(record: &Record) -> Option<Figure<'_>> {
    record.collectives.as_ref()?;
    let series = &record.steps.as_ref()?.series;
    let busy = || series.iter().filter(|block| block.comm_total_ns > 0);
    let rate = |block: &StepBlock| block.comm_bytes as f64 / (block.comm_total_ns as f64 / 1e9);
    let points: Vec<_> = busy().map(|block| (middle_of(block), rate(block))).collect();
    if points.is_empty() {
        return None;
    }
    let texts = hovers(busy(), |block| vec![bytes_per_second(rate(block))]);
    let chart = Chart {
        title: "Communication".into(),
        caption: "Bytes of the communicated buffers over the time in which any was in flight, on \
                  rank 0."
            .into(),
        x: steps_axis(series)?,
        y: Axis {
            label: "rate",
            range: from_zero(points.iter().map(|point| point.1)),
            format: bytes_per_second,
        },
    };
    Some(Figure::new(chart, move |canvas| {
        canvas.line(&points, Ink::Series(0));
        canvas.hover_nearest(&texts);
    }))
}

fn saves(checkpoints: &Checkpoints) -> Option<Figure<'_>> {
    let saved = &checkpoints.saved;
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let (first, last) = (saved.first()?.step as f64, saved.last()?.step as f64);
    let margin = ((last - first) * 0.05).max(1.0);
    let chart = Chart {
        title: "Checkpoints".into(),
        caption: "Each committed checkpoint: from its trigger to its commit, and for how long \
                  training stopped."
            .into(),
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
    let text = |save: &CheckpointSaved| {
        let [committed, stopped] = [save.save_ns, save.stall_ns].map(|it| milliseconds(ms(it)));
        let step = save.step;
        format!("step {step}\nuntil committed {committed} ms\ntraining stopped {stopped} ms")
    };
    let texts: Vec<_> = saved.iter().map(|save| (save.step as f64, text(save))).collect();
    let figure = Figure::new(chart, move |canvas| {
        for save in saved {
            let step = save.step as f64;
            let bar = |height: f64| [(step - width, 0.0), (step + width, height)];
            canvas.bar(bar(ms(save.save_ns)), Ink::Series(0), 1.0);
            canvas.bar(bar(ms(save.stall_ns)), Ink::Series(1), 1.0);
        }
        canvas.hover_nearest(&texts);
    });
    Some(figure.with_legend(legend))
}

fn bandwidths(checkpoints: &Checkpoints) -> Option<Figure<'_>> {
    let mut rates = vec![(format!("saved to {}", checkpoints.tier), checkpoints.bytes_per_second)];
    rates.extend(
        checkpoints
            .promoted
            .iter()
            .filter_map(|tier| Some((format!("copied to {}", tier.tier), tier.bytes_per_second?))),
    );
    let count = rates.len() as f64;
    let chart = Chart {
        title: "Storage".into(),
        caption:
            "Bytes per second of checkpoints over all ranks; saves on the tier with most of them."
                .into(),
        x: Axis {
            label: "rate",
            range: from_zero(rates.iter().map(|rate| rate.1)),
            format: bytes_per_second,
        },
        y: Axis { label: "tier", range: -0.5..count - 0.5, format: |_| String::new() },
    };
    Some(Figure::new(chart, move |canvas| {
        for (row, (name, rate)) in rates.iter().rev().enumerate() {
            let row = row as f64;
            let corners = [(0.0, row - 0.25), (*rate, row + 0.1)];
            let text = format!("{name}: {}", bytes_per_second(*rate));
            canvas.bar(corners, Ink::Series(0), 1.0);
            canvas.hover(corners, &text);
            canvas.text((0.0, row + 0.36), text);
        }
    }))
}
