//! Master weights outside of a step, piece by piece: those that a rank holds are set, and those
//! that it owns are digested. Those of a device pass through a bounded buffer of the host, so that
//! no rank needs host memory for the whole model.

use std::ops::Range;

use device::Device;
use models::layout::Tensor;
use record::WeightsDigest;

use super::shard::Piece;
use super::state::State;
use crate::failure::Outcome;

/// Host memory for weights on their way from or to a device: enough for runs of a few thousand
/// elements in each row of a transposed file.
pub(crate) const TRANSFER_BYTES: usize = 16 << 20;

/// Elements of one transfer.
const TRANSFER_ELEMENTS: usize = TRANSFER_BYTES / size_of::<f32>();

impl State<'_> {
    /// Sets the master weights that this rank holds: `fill` writes elements of a tensor, from the
    /// given element on. Call [`Self::all_gather_weights`] afterwards.
    pub(crate) fn set_weights(
        &mut self,
        device: &Device,
        mut fill: impl FnMut(&Tensor, usize, &mut [f32]) -> Outcome<()>,
    ) -> Outcome<()> {
        self.take_back();
        let Self { shard, layout, weights, .. } = self;
        let mut buffer = transfer_buffer(device);
        for piece in shard.pieces() {
            let tensor = &layout.tensors()[piece.tensor];
            let first = piece.elements(tensor).start;
            let mut master = weights.master_mut(piece);
            if matches!(device, Device::Host) {
                fill(tensor, first, master.host())?;
                continue;
            }
            for part in transfers(master.len()) {
                let elements = &mut buffer[..part.len()];
                fill(tensor, first + part.start, elements)?;
                device.write(master.reborrow().slice(part), elements)?;
            }
        }
        Ok(())
    }

    /// Returns the part that pieces of the master weights have of the model's digest. None of them
    /// may be in flight.
    pub(super) fn digest(
        &self,
        device: &Device,
        pieces: impl Iterator<Item = Piece>,
    ) -> Outcome<WeightsDigest> {
        let mut digests = Vec::new();
        let mut buffer = transfer_buffer(device);
        for piece in pieces {
            let tensor = &self.layout.tensors()[piece.tensor];
            let first = piece.elements(tensor).start;
            let master = self.weights.master(&piece);
            if matches!(device, Device::Host) {
                digests.push(models::digest_elements(&tensor.name, first, master.host()));
                continue;
            }
            for part in transfers(master.len()) {
                let elements = &mut buffer[..part.len()];
                device.read(master.slice(part.clone()), elements)?;
                let first = first + part.start;
                digests.push(models::digest_elements(&tensor.name, first, elements));
            }
        }
        Ok(digests.into_iter().sum())
    }
}

/// Allocates the buffer of transfers; empty where the host computes, which needs none.
fn transfer_buffer(device: &Device) -> Vec<f32> {
    match device {
        Device::Host => Vec::new(),
        Device::Cuda(_) => vec![0.0; TRANSFER_ELEMENTS],
    }
}

/// Returns the ranges in which so many elements are transferred.
fn transfers(elements: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..elements).step_by(TRANSFER_ELEMENTS);
    starts.map(move |start| start..elements.min(start + TRANSFER_ELEMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_bounded_and_leave_nothing_out() {
        for elements in [0, 1, TRANSFER_ELEMENTS, TRANSFER_ELEMENTS + 1, 3 * TRANSFER_ELEMENTS] {
            let mut end = 0;
            for part in transfers(elements) {
                assert_eq!(part.start, end);
                assert!((1..=TRANSFER_ELEMENTS).contains(&part.len()));
                end = part.end;
            }
            assert_eq!(end, elements);
        }
    }
}
