//! Mapping of the flat buffers of training to the named tensors of a checkpoint.

use checkpoint::{Dtype, PartMut, TensorBox};
use models::Layout;

use crate::step::{HeldElements, Piece, SavedLayout, SavedRange, StateBuffersMut, WEIGHTS};

/// Returns the name of a buffer's tensor in a checkpoint.
fn name_in_checkpoint(prefix: &str, tensor: &str) -> String {
    format!("{prefix}.{tensor}")
}

/// Returns the name of a weight in a checkpoint.
pub(crate) fn weight_in_checkpoint(tensor: &str) -> String {
    name_in_checkpoint(WEIGHTS, tensor)
}

/// Boxes that this rank saves.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) boxes: Vec<TensorBox>,
    /// Range of each box in the state.
    pub(crate) ranges: Vec<SavedRange>,
}

/// Returns what this rank saves: its part of every bucket, so each element is written by one rank.
pub(crate) fn saved(state: &SavedLayout<'_>) -> Saved {
    let mut saved = Saved::default();
    for (number, buffer) in state.buffers.iter().enumerate() {
        for piece in state.shard.saved() {
            let mut start = buffer.order.of(&piece).start;
            for tensor in boxes(buffer.prefix, state.layout, &piece) {
                let elements = start..start + tensor.elements();
                start = elements.end;
                saved.boxes.push(tensor);
                saved.ranges.push(SavedRange { buffer: number, elements });
            }
        }
    }
    saved
}

/// Box that this rank holds.
#[derive(Debug)]
pub(crate) struct Held<'state> {
    tensor: TensorBox,
    data: HeldElements<'state>,
}

impl Held<'_> {
    /// Returns the box as a restore takes it.
    pub(crate) fn as_part(&mut self) -> PartMut<'_> {
        PartMut { tensor: self.tensor.clone(), data: &mut self.data }
    }
}

/// Returns the state that this rank holds, to be filled from a checkpoint of any world size.
pub(crate) fn held(state: StateBuffersMut<'_>) -> Vec<Held<'_>> {
    let mut parts = Vec::new();
    let StateBuffersMut { shard, layout, buffers, writer } = state;
    for buffer in buffers {
        let mut rest = buffer.elements;
        let mut position = 0;
        for piece in shard.pieces() {
            let range = buffer.order.of(piece);
            rest = rest.split_at(range.start - position).1;
            position = range.end;
            for tensor in boxes(buffer.prefix, layout, piece) {
                let (elements, tail) = rest.split_at(tensor.elements());
                parts.push(Held { tensor, data: HeldElements { elements, writer } });
                rest = tail;
            }
        }
    }
    parts
}

/// Splits a piece into boxes (ranges of a tensor in each dimension), in order.
fn boxes(prefix: &str, layout: &Layout, piece: &Piece) -> impl Iterator<Item = TensorBox> {
    let tensor = &layout.tensors()[piece.tensor];
    let name = name_in_checkpoint(prefix, &tensor.name);
    TensorBox::covering(&name, Dtype::F32, &tensor.shape, piece.elements(tensor)).into_iter()
}
