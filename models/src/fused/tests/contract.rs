//! The contract of [`Model`]: the order of segments, of passes, and what is refused.

use std::ops::Range;

use device::Allocator;

use super::{Event, Flat, engine, families, layout, tokens, weights};
use crate::fused::Fused;
use crate::workload::Compute;
use crate::{Batch, Error, Layout, MicroBatch, Model, Pass, Sums, WeightSource, Weights};

#[test]
fn segments_complete_in_order_and_passes_are_reported() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let mut sink = Flat::<f32>::new(&config);
        let weights = weights::<f32>(&config);
        let mut model = engine(&config, Compute::F32);
        model
            .train_on_host(&mut Weights::from(&weights[..]), batch, 1.0, Sums::Write, &mut sink)
            .unwrap();
        let completed = |event: &Event| matches!(event, Event::Complete(_));
        let order: Vec<Event> = sink.events.drain(..).collect();
        let first = order.iter().position(completed).unwrap();
        let segments = layout(&config).segments().len();
        assert!(
            order[first..].iter().eq((0..segments).map(Event::Complete).collect::<Vec<_>>().iter())
        );
        assert_eq!(order[0], Event::Enter(Pass::Forward));
        assert_eq!(order[first - 1], Event::Enter(Pass::Backward));
    }
}

/// Lends segments, records which were requested, and fails at one.
struct Recorded<'a> {
    layout: Layout,
    weights: &'a [f32],
    requested: Vec<usize>,
    fails_at: Option<usize>,
}

impl WeightSource for Recorded<'_> {
    fn flat_len(&self) -> usize {
        self.weights.len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, Error> {
        let index = self.layout.segments().iter().position(|segment| segment.range == *range);
        self.requested.push(index.unwrap());
        if index == self.fails_at {
            return Err(Error::Exchange("they are lost".into()));
        }
        Ok(Weights::from(&self.weights[range.clone()]))
    }
}

#[test]
fn every_segment_is_requested_from_last_to_first_before_a_gradient_is_complete() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let weights = weights::<f32>(&config);
        let layout = layout(&config);
        let mut model = engine(&config, Compute::F32);
        let segments = layout.segments().len();
        let mut source =
            Recorded { layout, weights: &weights, requested: Vec::new(), fails_at: None };
        let mut sink = Flat::<f32>::new(&config);
        let loss = model.train_on_host(&mut source, batch, 1.0, Sums::Write, &mut sink).unwrap();
        let uses = source.layout.uses();
        assert!(source.requested[..segments].iter().copied().eq((0..segments).rev()));
        assert_eq!(source.requested, [&uses.forward[..], &uses.backward].concat());
        source.requested.clear();
        let evaluated = model.evaluate(&mut source, batch).unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits());
        assert_eq!(source.requested, uses.forward);
        for lost in 0..segments {
            source.fails_at = Some(lost);
            let mut sink = Flat::<f32>::new(&config);
            let failed = model.train_on_host(&mut source, batch, 1.0, Sums::Write, &mut sink);
            assert!(matches!(failed, Err(Error::Exchange(_))), "segment {lost}");
            assert!(!sink.events.iter().any(|event| matches!(event, Event::Complete(_))));
            assert!(model.evaluate(&mut source, batch).is_err(), "segment {lost}");
        }
    }
}

#[test]
fn impossible_batches_are_refused_by_name() {
    for (sequences, tokens, key) in
        [(0, 7, "batch.micro_sequences"), (1, 0, "sequence_tokens"), (1, 10, "sequence_tokens")]
    {
        let config = &families()[0];
        let micro_batch = MicroBatch { sequences, tokens };
        let counting = Allocator::counting();
        let engine = Fused::new(config, layout(config), micro_batch, Compute::F32, &counting);
        let error = engine.unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
