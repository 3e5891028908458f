//! Charts of steps: loss, health, speed, and the distribution of times.

use super::canvas::{Axis, Chart, Ink};
use super::figure::{Figure, arranged};
use record::text::number_format;
use record::{Clocks, Record, StepBlock, StepsSummary};

/// Draws the charts of a run's steps; nothing without steps.
pub(super) fn steps(record: &Record) -> String {
    let Some(steps) = &record.steps else { return String::new() };
    let charts = [loss(steps), health(steps), speed(steps), distribution(steps)];
    arranged(charts.into_iter().flatten())
}

/// Returns the axis of steps, from the first to the last.
pub(super) fn steps_axis(series: &[StepBlock]) -> Option<Axis<'static>> {
    let first = series.first()?.first_step as f64;
    let end = series.last().map(end_of)?;
    let range = first - 1.0..end;
    Some(Axis { label: "step", range, format: number_format::thousands })
}

/// Returns the number of the last step of a block.
pub(super) fn end_of(block: &StepBlock) -> f64 {
    (block.first_step + block.steps - 1) as f64
}

/// Names a block, as in "step 7" or "steps 41 to 50".
pub(super) fn name_of(block: &StepBlock) -> String {
    let first = number_format::thousands(block.first_step as f64);
    match block.steps {
        1 => format!("step {first}"),
        _ => format!("steps {first} to {}", number_format::thousands(end_of(block))),
    }
}

/// Builds the hover texts of blocks: the steps of each, and lines of values there.
pub(super) fn hovers<'a>(
    blocks: impl IntoIterator<Item = &'a StepBlock>,
    lines: impl Fn(&StepBlock) -> Vec<String>,
) -> Vec<(f64, String)> {
    let text = |block: &StepBlock| {
        let lines = lines(block).into_iter();
        std::iter::once(name_of(block)).chain(lines).collect::<Vec<_>>().join("\n")
    };
    blocks.into_iter().map(|block| (middle_of(block), text(block))).collect()
}

/// Returns the middle of the block's steps.
pub(super) fn middle_of(block: &StepBlock) -> f64 {
    block.first_step as f64 + (block.steps - 1) as f64 / 2.0
}

/// Returns the range from 0 to slightly above the largest value.
pub(super) fn from_zero(values: impl IntoIterator<Item = f64>) -> std::ops::Range<f64> {
    let finite = values.into_iter().filter(|value| value.is_finite());
    0.0..1.08 * finite.fold(f64::MIN_POSITIVE, f64::max)
}

fn loss(steps: &StepsSummary) -> Option<Figure<'_>> {
    let at = |block: &StepBlock, loss: Option<f64>| (middle_of(block), loss.unwrap_or(f64::NAN));
    let training: Vec<_> = steps.series.iter().map(|block| at(block, block.loss)).collect();
    let held_out = steps.series.iter().filter(|block| block.evaluation_loss.is_some());
    let held_out: Vec<_> = held_out.map(|block| at(block, block.evaluation_loss)).collect();
    let all = training.iter().chain(&held_out).map(|(_, loss)| *loss);
    let finite: Vec<f64> = all.chain(steps.entropy_floor).filter(|loss| loss.is_finite()).collect();
    let least = finite.iter().copied().reduce(f64::min)?;
    let most = finite.iter().copied().reduce(f64::max)?;
    let margin = 0.05 * (most - least).max(1e-3);
    let chart = Chart {
        title: "Loss".into(),
        caption: "Mean cross-entropy of the global batch. The floor is the least that any model \
                  can reach on synthetic data."
            .into(),
        x: steps_axis(&steps.series)?,
        y: Axis { label: "nats per token", range: least - margin..most + margin, format: short },
    };
    let mut legend = vec![("training", Ink::Series(0))];
    legend.extend((!held_out.is_empty()).then_some(("held-out", Ink::Series(1))));
    legend.extend(steps.entropy_floor.map(|_| ("entropy floor", Ink::Series(7))));
    let ends = chart.x.range.clone();
    let texts = hovers(&steps.series, |block| {
        let nats = |name: &str, loss: Option<f64>| loss.map(|loss| format!("{name} {loss:.4}"));
        let lines = [nats("training", block.loss), nats("held-out", block.evaluation_loss)];
        lines.into_iter().flatten().collect()
    });
    let figure = Figure::new(chart, move |canvas| {
        if let Some(floor) = steps.entropy_floor {
            canvas.line(&[(ends.start, floor), (ends.end, floor)], Ink::Series(7));
        }
        canvas.line(&training, Ink::Series(0));
        held_out.iter().for_each(|point| canvas.dot(*point, Ink::Series(1)));
        canvas.hover_nearest(&texts);
    });
    Some(figure.with_legend(legend))
}

/// Draws norms and a ratio in one chart, although units differ: each relative to its largest value.
fn health(steps: &StepsSummary) -> Option<Figure<'_>> {
    type Value = fn(&StepBlock) -> Option<f64>;
    const VALUES: [(&str, Value); 3] = [
        ("gradient norm", |block| block.gradient_norm),
        ("parameter norm", |block| block.parameter_norm),
        ("update ratio", |block| block.update_ratio),
    ];
    let mut legend = Vec::new();
    let mut lines = Vec::new();
    for (number, (name, value)) in (0..).zip(VALUES) {
        let known = steps.series.iter().filter_map(|block| Some((middle_of(block), value(block)?)));
        let points: Vec<_> = known.collect();
        let Some(most) = points.iter().map(|point| point.1).reduce(f64::max) else { continue };
        let share = |(step, value): &(f64, f64)| (*step, value / most.max(f64::MIN_POSITIVE));
        legend.push((format!("{name}, at most {}", significant(most)), Ink::Series(number)));
        lines.push((points.iter().map(share).collect::<Vec<_>>(), Ink::Series(number)));
    }
    if lines.is_empty() {
        return None;
    }
    let texts = hovers(&steps.series, |block| {
        let line = |(name, value): &(&str, Value)| {
            value(block).map(|value| format!("{name} {}", significant(value)))
        };
        VALUES.iter().filter_map(line).collect()
    });
    let chart = Chart {
        title: "Training health".into(),
        caption: "Each as a share of its largest value. Gradient norm before clipping; update \
                  ratio: norm of an update by that of the parameters."
            .into(),
        x: steps_axis(&steps.series)?,
        y: Axis { label: "share of the largest", range: from_zero([1.0]), format: short },
    };
    let figure = Figure::new(chart, move |canvas| {
        lines.iter().for_each(|(points, ink)| canvas.line(points, *ink));
        canvas.hover_nearest(&texts);
    });
    Some(figure.with_legend(legend))
}

/// Formats a value with at least three significant digits, whatever its size.
fn significant(value: f64) -> String {
    if (1.0..1e4).contains(&value) { short(value) } else { format!("{value:.2e}") }
}

fn speed(steps: &StepsSummary) -> Option<Figure<'_>> {
    let rate =
        |block: &StepBlock| block.tokens as f64 / (block.phases_ns.step_ns().max(1) as f64 / 1e9);
    let points: Vec<_> = steps.series.iter().map(|block| (middle_of(block), rate(block))).collect();
    let texts = hovers(&steps.series, |block| {
        let rate = number_format::thousands(rate(block));
        let ms = block.phases_ns.step_ns() as f64 / 1e6 / block.steps as f64;
        vec![
            format!("{rate} {}", Clocks::STEP_RATE),
            format!("{} ms", number_format::milliseconds(ms)),
        ]
    });
    let chart = Chart {
        title: "Speed".into(),
        caption: "All ranks together by the step clock: without checkpoints and evaluation.".into(),
        x: steps_axis(&steps.series)?,
        y: Axis {
            label: Clocks::STEP_RATE,
            range: from_zero(points.iter().map(|point| point.1)),
            format: number_format::thousands,
        },
    };
    Some(Figure::new(chart, move |canvas| {
        canvas.line(&points, Ink::Series(0));
        canvas.hover_nearest(&texts);
    }))
}

fn distribution(steps: &StepsSummary) -> Option<Figure<'_>> {
    let histogram = &steps.histogram;
    let width = if histogram.width > 0.0 { histogram.width } else { 0.1 };
    let end = histogram.from + width * histogram.counts.len() as f64;
    let counts = || histogram.counts.iter().map(|count| *count as f64);
    let chart = Chart {
        title: "Step times".into(),
        caption: "Measured steps; the last bar has all that took longer.".into(),
        x: Axis { label: "ms", range: histogram.from..end, format: short },
        y: Axis { label: "steps", range: from_zero(counts()), format: whole },
    };
    Some(Figure::new(chart, move |canvas| {
        for (bin, count) in counts().enumerate().filter(|(_, count)| *count > 0.0) {
            let left = histogram.from + width * bin as f64;
            let corners = [(left + 0.05 * width, 0.0), (left + 0.95 * width, count)];
            canvas.bar(corners, Ink::Series(0), 1.0);
            let steps = number_format::count(count as usize, "step");
            let until = if bin + 1 == histogram.counts.len() {
                "or longer".to_owned()
            } else {
                format!("to {} ms", short(left + width))
            };
            canvas.hover_between(left..left + width, &format!("{} {until}\n{steps}", short(left)));
        }
    }))
}

/// Formats a value with up to two decimals, without trailing zeros.
pub(super) fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats counts: fractions get no label.
pub(super) fn whole(value: f64) -> String {
    if value.fract() == 0.0 { number_format::thousands(value) } else { String::new() }
}
