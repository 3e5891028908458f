//! Bit flips for drills: `--inject flip@step=30,rank=1,where=gradient`. The text of a flip decides
//! its element and bits, so that it can be repeated.

use std::str::FromStr;

use bytemuck::Pod;
use device::{Device, Element, ViewMut, cuda};
use models::Layout;
use models::rng::{Purpose, Stream};

/// Values whose bits are flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FlippedValue {
    /// A gradient of the rank, while it is computed.
    #[default]
    Gradient,
    /// A token that the rank trains on.
    Input,
    /// A weight that it computes with, before a step.
    Weights,
    /// A gradient on its way to the other ranks.
    Reduction,
    /// A first moment, before a step.
    Moments,
}

impl FromStr for FlippedValue {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "gradient" => Self::Gradient,
            "input" => Self::Input,
            "weights" => Self::Weights,
            "reduction" => Self::Reduction,
            "moments" => Self::Moments,
            _ => return Err(()),
        })
    }
}

/// Computation of gradients in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Computation {
    /// The first one of the rank's own.
    First,
    /// One of its own again.
    Repeat,
    /// Those of any rank, or of fixed tokens, in a check.
    OfOther,
}

/// Kind of a bit flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlipKind {
    pub(crate) value: FlippedValue,
    /// Number of flipped bits of the value.
    pub(crate) bits: u32,
    /// Steps between those in which it happens, in every computation; `None` if it happens once.
    pub(crate) every: Option<u64>,
}

impl Default for FlipKind {
    fn default() -> Self {
        Self { value: FlippedValue::default(), bits: 1, every: None }
    }
}

impl FlipKind {
    /// Sets a field of the command line; `None` for a bad value.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let number = || value.parse::<u32>().ok().filter(|&number| number > 0);
        match key {
            "where" => self.value = value.parse().ok()?,
            "bits" => self.bits = number().filter(|&bits| bits <= 32)?,
            _ => self.every = Some(u64::from(number()?)),
        }
        Some(())
    }

    /// Returns whether the flip happens in a computation of a step, from step `first` on.
    pub(crate) fn is_due(self, first: u64, step: u64, computation: Computation) -> bool {
        match self.every {
            None => step == first && computation == Computation::First,
            Some(every) => step >= first && (step - first).is_multiple_of(every),
        }
    }
}

/// Bit flip that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitFlip {
    bits: u32,
    stream: Stream,
}

impl BitFlip {
    pub(crate) fn new(kind: FlipKind, text: &str) -> Self {
        Self { bits: kind.bits, stream: Stream::new(0, Purpose::Fault).named(text) }
    }

    /// Chooses one of so many elements.
    pub(crate) fn below(self, elements: usize) -> usize {
        self.stream.below(0, elements.max(1) as u64) as usize
    }

    /// Chooses the element of a tensor, as its position in the flat buffers.
    pub(crate) fn position(self, layout: &Layout) -> usize {
        let lengths = || layout.tensors().iter().map(|tensor| tensor.range.len());
        let mut element = self.below(lengths().sum());
        for tensor in layout.tensors() {
            if element < tensor.range.len() {
                return tensor.range.start + element;
            }
            element -= tensor.range.len();
        }
        0
    }

    /// Changes a token to its neighbour: another bit might leave the vocabulary.
    pub(crate) fn apply_to_token(self, tokens: &mut [u32]) {
        let index = self.below(tokens.len());
        tokens[index] = if tokens[index] == 0 { 1 } else { tokens[index] - 1 };
    }

    /// Flips bits of an element.
    pub(crate) fn apply<E: Element + Pod>(
        self,
        device: &Device,
        mut element: ViewMut<'_, E>,
    ) -> Result<(), cuda::Error> {
        let mut value = [E::default()];
        device.read(element.reborrow().as_view(), &mut value)?;
        let width = 8 * size_of::<E>() as u64;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut value);
        let mut flipped = 0_u64;
        let mut draw = 1;
        while flipped.count_ones() < self.bits.min(width as u32) {
            flipped |= 1 << self.stream.below(draw, width);
            draw += 1;
        }
        let pattern = flipped.to_le_bytes();
        bytes.iter_mut().zip(pattern).for_each(|(byte, flip)| *byte ^= flip);
        device.write(element, &value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wanted_number_of_bits_flips_and_twice_is_as_before() {
        for bits in [1, 2, 7, 32] {
            let kind = FlipKind { value: FlippedValue::Gradient, bits, every: None };
            for text in ["a", "b", "c"] {
                let flip = BitFlip::new(kind, text);
                let mut values = [1.5_f32];
                flip.apply(&Device::Host, ViewMut::from(&mut values[..])).unwrap();
                let changed = values[0].to_bits() ^ 1.5_f32.to_bits();
                assert_eq!(changed.count_ones(), bits, "{text}");
                flip.apply(&Device::Host, ViewMut::from(&mut values[..])).unwrap();
                assert_eq!(values[0].to_bits(), 1.5_f32.to_bits());
            }
        }
    }

    #[test]
    fn a_flip_happens_once_or_in_every_computation_of_its_steps() {
        use Computation::{First, OfOther, Repeat};
        let once = FlipKind { value: FlippedValue::Gradient, bits: 1, every: None };
        assert!(once.is_due(5, 5, First));
        assert!(!once.is_due(5, 5, Repeat) && !once.is_due(5, 5, OfOther));
        assert!(!once.is_due(5, 6, First));
        let every = FlipKind { every: Some(10), ..once };
        assert!(every.is_due(5, 25, First) && every.is_due(5, 25, OfOther));
        assert!(every.is_due(5, 5, Repeat) && !every.is_due(5, 4, First));
        assert!(!every.is_due(5, 11, First));
    }
}
